"""Resumes of one training at many of its steps, in one set of ranks.

Called as: every_resume.py KIND BETA2 STORE OUT STEPS COUNT SEED. The uninterrupted training saves after each step. Each
resume has a session of its own: a model with other weights, an optimizer, a loader, and generators in another state. It
continues for a few steps. KIND is fsdp, zero2 or zero3. Rank r writes the steps of the resumes, and the first
difference of each, to OUT/<r>.json.
"""

import gc
import json
import os
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

import m5ws
from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.records.ledger import AnyEvent, CheckpointPublished, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.runtime import collectives, context
from m5ws.training.runtime.stop import StopRequest

AFTER = 2
Betas = tuple[float, float]
Made = tuple[dict[str, Any], Callable[[torch.Tensor], dict[str, Any]]]


def fsdp(betas: Betas) -> Made:
    """Return the arguments of a session, and a function that does a step."""
    import tiny

    model = tiny.build("fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=betas)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(x: torch.Tensor) -> dict[str, Any]:
        loss = model(x).square().mean()
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
    return {"engine": engine, "loader": tiny.Loader(dist.get_rank())}, lambda x: tiny.train_step(engine, x)


def made(kind: str, betas: Betas) -> Made:
    return fsdp(betas) if kind == "fsdp" else zero(int(kind[-1]), betas)


def garbage() -> None:
    """Set the generators to states that no run has."""
    random.seed(os.urandom(8))
    np.random.seed(int.from_bytes(os.urandom(4)))
    torch.manual_seed(int.from_bytes(os.urandom(4)))


def session(
    kind: str, betas: Betas, repo: Repository, orders: Context, place: str, total: int, *, fresh: bool
) -> list[AnyEvent]:
    """Run a session to its end, and return this rank's records."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if not fresh:
        torch.manual_seed(3)
    parts, step_of = made(kind, betas)
    garbage() if fresh else torch.manual_seed(1000 + rank)
    spool = Path(orders.spool_dir) / f"{place}-{rank}.spool"
    writer = SpoolWriter(spool, genesis(orders.run, orders.attempt, str(rank)))
    context.activate(
        context.ActiveRank(orders, repo, writer, StopRequest(Path(orders.spool_dir) / "stop", world), rank, world)
    )
    groups = set(dist.distributed_c10d._world.pg_map)
    for step in m5ws.session(**parts, total_steps=total).steps():
        step.record(**step_of(step.next_batch()))
    context.activate(None)
    dist.barrier()
    for group in set(dist.distributed_c10d._world.pg_map) - groups:
        dist.destroy_process_group(group)
    if "engine" in parts:
        parts["engine"].destroy()
    parts.clear()
    gc.collect()
    return [ledger.decode_event(event) for event in SpoolReader(spool).read()]


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
    events = session(kind, betas, repo, msgspec.structs.replace(orders, spec=dense), "whole", total, fresh=False)
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
        again = recorded(session(kind, betas, repo, given, str(number), total + 1, fresh=True))
        wanted = {key: value for key, value in whole.items() if number < key[1] <= number + AFTER}
        if again != wanted:
            differ.append([number, sorted(map(str, (key for key in wanted if again.get(key) != wanted[key])))])
    found = {"after": after, "differ": differ, "compared": 2 * AFTER * len(after)}
    Path(out, f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
