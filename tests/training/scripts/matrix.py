"""One feature in one set of ranks: a training, the same again, a resume of it, and a restore of another mesh's.

Called as: matrix.py FEATURE STORE OUT [SOURCE]. Rank r writes OUT/<r>.json: for `again` and `resume` what differs, an
error's text, the notices. SOURCE is another feature's OUT: its checkpoint is restored, proven and gone on from.
"""

import gc
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

import m5ws
from m5ws.errors import M5Error
from m5ws.records import codec
from m5ws.records.launch import Context
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Notice, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, genesis
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from m5ws.training.runtime import collectives, context
from m5ws.training.runtime.stop import StopRequest

STEPS, AT = 3, 2


def garbage() -> None:
    """Set the generators to states that no run has."""
    random.seed(os.urandom(8))
    np.random.seed(int.from_bytes(os.urandom(4)))
    torch.manual_seed(int.from_bytes(os.urandom(4)))


def session(repo: Repository, orders: Context, place: str, made: Any, total: int, *, fresh: bool) -> Any:
    """Run a session to its end, destroy its groups, and return this rank's records."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    parts, step_of = made(77 if fresh else 3)
    garbage() if fresh else torch.manual_seed(1000 + rank)
    spool = Path(orders.spool_dir) / f"{place}-{rank}.spool"
    writer = SpoolWriter(spool, genesis(orders.run, orders.attempt, str(rank)))
    context.activate(
        context.ActiveRank(orders, repo, writer, StopRequest(Path(orders.spool_dir) / "processes"), rank, world)
    )
    groups = set(dist.distributed_c10d._world.pg_map)
    try:
        for step in m5ws.session(**parts, total_steps=total).steps():
            step.record(**step_of(step))
    finally:
        context.activate(None)
    if world > 1:
        dist.barrier()
    for group in set(dist.distributed_c10d._world.pg_map) - groups:
        dist.destroy_process_group(group)
    if "engine" in parts:
        parts["engine"].destroy()
    parts.clear()
    gc.collect()
    return [ledger.decode_event(event) for event in SpoolReader(spool).read()]


def recorded(events: list[AnyEvent], after: int = -1) -> Any:
    steps = {f"step {e.step}": [e.quantities, e.batch] for e in events if isinstance(e, Step) and e.step > after}
    states = [e for e in events if isinstance(e, State) and not e.restored and e.step > after]
    return steps | {f"state {e.step}": [e.tensors, e.generators] for e in states}


def _names(one: Any, other: Any) -> list[str]:
    """Return the names of the differences in a step or a state."""
    if one is None or other is None:
        return ["all of it"]
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if isinstance(a, dict) and isinstance(b, dict)]
    return [name for a, b in pairs for name in sorted({*a, *b}) if a.get(name) != b.get(name)][:6]


def differing(wanted: dict[str, Any], found: dict[str, Any]) -> Any:
    return [
        f"{key}: {_names(wanted.get(key), found.get(key))}"
        for key in sorted({*wanted, *found})
        if wanted.get(key) != found.get(key)
    ]


def elsewhere(events: list[AnyEvent]) -> list[str]:
    """Return the restored optimizer state that is on other ranks than its parameter; on rank 0."""
    tensors = next((e.tensors for e in events if isinstance(e, State) and e.restored), {})
    held = {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith("model.")}
    return [
        name
        for name, value in tensors.items()
        for owner, own in held.items()
        if name.startswith(f"optimizer.{owner}.") and value.partition("@")[2] != own.partition("@")[2]
    ]


def made_of(name: str) -> Any:
    """Return the function that makes a feature's training; only DeepSpeed's features import DeepSpeed."""
    if name.startswith("zero"):
        import features_deepspeed

        return features_deepspeed.FEATURES[name]
    import features_layouts  # noqa: F401  # each registers its features
    import features_objects  # noqa: F401
    import features_optimizers  # noqa: F401
    import features_precision  # noqa: F401
    from features import FEATURES

    return FEATURES[name]


def tried(name: str, repo: Repository, orders: Context, out: Path, source: str | None) -> Iterator[tuple[str, Any]]:
    made, world = made_of(name), int(os.environ.get("WORLD_SIZE", "1"))
    dense = LaunchSpec(command=("x.py",), nproc=world, checkpoint_every=1, fingerprint_every=1)
    sparse = LaunchSpec(command=("x.py",), nproc=world, fingerprint_every=1)
    ending = msgspec.structs.replace(orders, spec=sparse, until=STEPS, goes_on=False)
    events = session(repo, msgspec.structs.replace(orders, spec=dense), "whole", made, STEPS, fresh=False)
    yield "notices", [e.message for e in events if isinstance(e, Notice) and e.kind in ("limit", "resume-limit")]
    whole = recorded(events)
    again = recorded(session(repo, ending, "again", made, STEPS + 1, fresh=False))
    yield "again", differing(whole, again)
    digests = {e.step: e.checkpoint for e in events if isinstance(e, CheckpointPublished)}
    digest = collectives.broadcast(digests.get(AT), collectives.new_group())
    if int(os.environ.get("RANK", "0")) == 0:
        (out / "checkpoint").write_text(digest)
    resumed = msgspec.structs.replace(ending, resume=digest)
    found = session(repo, resumed, "resume", made, STEPS + 1, fresh=True)
    yield "resume", differing(recorded(events, after=AT), recorded(found))
    if source is not None:
        given = msgspec.structs.replace(ending, resume=(source / "checkpoint").read_text())
        found = session(repo, given, "other", made, STEPS + 1, fresh=True)
        yield "elsewhere", elsewhere(found)
        yield "other", [e.message for e in found if isinstance(e, Notice) and e.kind in ("limit", "resume-limit")]


def main(name: str, store: str, out: Path, source: str | None = None) -> None:
    if "WORLD_SIZE" in os.environ:
        if name.startswith("zero"):
            import deepspeed

            deepspeed.init_distributed("gloo", verbose=False)
        else:
            dist.init_process_group("gloo")
    torch.set_num_threads(1)
    repo, out = Repository.open(open_store(store)), Path(out)
    found = {}
    try:
        orders = codec.decode((out / "orders").read_bytes(), Context)
        found |= tried(name, repo, orders, out, source and Path(source))
    except M5Error as error:
        found["error"] = f"{type(error).__name__}: {error}"
    (out / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # A rank that was refused does not wait for groups to be taken down.


if __name__ == "__main__":
    main(*sys.argv[1:])
