"""Resumes of one training at many of its steps, in one set of ranks.

Called as: every_resume.py KIND BETA2 STORE OUT STEPS COUNT SEED. The uninterrupted training saves after each step. Each
resume has a session of its own: a model with other weights, an optimizer, a loader, and generators in another state. It
continues for a few steps. KIND is fsdp, zero2 or zero3. Rank r writes the steps of the resumes, and the first
difference of each, to OUT/<r>.json.
"""

import functools
import json
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from matrix import session

from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.records.ledger import AnyEvent, CheckpointPublished, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.runtime import collectives

AFTER = 2
Betas = tuple[float, float]
Made = tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]


def fsdp(betas: Betas) -> Made:
    """Return the arguments of a session, and a function that does a step."""
    import tiny

    model = tiny.build("fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=betas)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(current: Any) -> dict[str, Any]:
        loss = model(current.next_batch()).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return {"loss": loss, "grad_norm": norm, "lr": scheduler.get_last_lr()[0]}

    loader = tiny.ExactLoader(dist.get_rank())
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}, step


def zero(stage: int, betas: Betas) -> Made:
    """Return the arguments of a session, and a function that does a step."""
    import deepspeed_tiny as tiny

    engine = tiny.engine_of(tiny.config(stage, "bf16"), tiny.Model(), betas=betas)
    return {"engine": engine, "loader": tiny.Loader(dist.get_rank())}, lambda step: tiny.train_step(
        engine, step.next_batch()
    )


def made(kind: str, betas: Betas, seed: int) -> Made:
    torch.manual_seed(seed)
    return fsdp(betas) if kind == "fsdp" else zero(int(kind[-1]), betas)


def recorded(events: list[AnyEvent]) -> dict[tuple[str, int], object]:
    """Return all compared values, by kind and step."""
    steps = {("step", e.step): (e.quantities, e.batch) for e in events if isinstance(e, Step)}
    states = {("state", e.step): (e.tensors, e.generators) for e in events if isinstance(e, State) and not e.restored}
    return steps | states


def main(kind: str, beta2: str, store: str, out: str, steps: str, count: str, seed: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if kind == "fsdp":
        dist.init_process_group("gloo")
    else:
        import deepspeed

        deepspeed.init_distributed("gloo", verbose=False)
    repo, group = Repository.open(open_store(store)), collectives.new_group()
    orders = codec.decode((Path(out) / "orders").read_bytes(), Context)
    betas, total = (0.9, float(beta2)), int(steps) + AFTER
    dense = LaunchSpec(command=("x.py",), nproc=3, checkpoint_every=1, fingerprint_every=1)
    training = functools.partial(made, kind, betas)
    events = session(repo, msgspec.structs.replace(orders, spec=dense), "whole", training, total, fresh=False)
    whole = recorded(events)
    digests = {e.step: e.checkpoint for e in events if isinstance(e, CheckpointPublished)}
    digests = collectives.broadcast(digests, group)
    after = sorted(random.Random(int(seed)).sample(range(1, int(steps) + 1), int(count)))
    sparse = LaunchSpec(command=("x.py",), nproc=3, fingerprint_every=1)
    differ = []
    for number in after:
        given = msgspec.structs.replace(
            orders, spec=sparse, resume=digests[number], until=number + AFTER, goes_on=False
        )
        # One step more than it does: the last step of a training is always saved.
        again = recorded(session(repo, given, str(number), training, total + 1, fresh=True))
        wanted = {key: value for key, value in whole.items() if number < key[1] <= number + AFTER}
        if again != wanted:
            differ.append([number, sorted(map(str, (key for key in wanted if again.get(key) != wanted[key])))])
    found = {"after": after, "differ": differ, "compared": 2 * AFTER * len(after)}
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
