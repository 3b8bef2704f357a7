"""A store with every kind of record: snapshots, runs with ledgers and checkpoints, a verdict, a pin, gc plans."""

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from m5ws.records.environment import Declared, Observed
from m5ws.records.gc import Keep, RetentionRules
from m5ws.records.ledger import NODE, AttemptEnded, RankStarted, Step
from m5ws.records.run import LaunchSpec
from m5ws.records.snapshot import Dataset
from m5ws.records.verdict import Verdict
from m5ws.repository import bindings
from m5ws.repository import gc_plans as plans
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.gc import execute, gc
from m5ws.repository.objects import write_parts
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from tests.support.records import contents, planted

_AT_ONCE_S = -60.0
"""The age of all objects: a server's times may be whole seconds."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The amount: `large` and `small` files of a dataset with their sizes in bytes, snapshots, and ledger batches."""

    large: int = 0
    large_bytes: int = 0
    small: int = 3
    small_bytes: int = 200
    changed: int = 1
    snapshots: int = 1
    batches: int = 2
    saved_bytes: int = 300


def fill(repo: Repository, folder: Path, scale: Scale, seed: int = 1) -> None:
    """Publish snapshots, each with changed files and a run, and all other records. The data is drawn from `seed`."""
    draw = random.Random(seed)
    files = list(_files(folder, scale, draw))
    made = []
    for number in range(scale.snapshots):
        for file in draw.sample(files, scale.changed):
            size = Path(file.location).stat().st_size
            Path(file.location).write_bytes(draw.randbytes(size))
        snapshot = _snapshot(repo, files, number)
        made.append(_run(repo, snapshot, scale, draw))
    checkpoints.keep(repo, made[0], checkpoints.name(2, 1))
    replay = planted.run(repo, "f" * 12, runs.load(repo, made[0]).snapshot, purpose="reproduce", reproduces=made[0])
    runs.publish_verdict(repo, Verdict(run=made[0], replay=replay.id, outcome="reproduced", compared={"steps": 4}))
    _plans(repo, folder.with_name("gc"))


def _plans(repo: Repository, home: Path) -> None:
    """Leave an executed plan and an open plan, which retires a checkpoint and of which a writer keeps some objects."""
    repo.objects.put(b"left by a killed writer")
    done = gc.plan(repo, RetentionRules(), _AT_ONCE_S).id
    assert done is not None
    with execute.lock_gc(home) as holder:
        execute.execute(repo, done, holder, grace_s=0.0)
    left = repo.objects.put(b"left by another")
    planned = gc.plan(repo, RetentionRules(last=1), _AT_ONCE_S)
    assert planned.id is not None and planned.plan.references
    keep = Keep(digests=bytes.fromhex(left))
    bindings.create(repo.store, f"{plans.folder(planned.id, 'keep')}0", keep)


def _files(folder: Path, scale: Scale, draw: random.Random) -> Iterator[SourceFile]:
    folder.mkdir()
    sizes = [scale.large_bytes] * scale.large + [scale.small_bytes] * scale.small
    for number, size in enumerate(sizes):
        path = folder / f"{number:06d}"
        path.write_bytes(draw.randbytes(draw.randint(size // 2, size * 3 // 2)))
        yield SourceFile(path=f"data/{path.name}".encode(), location=path)


def _snapshot(repo: Repository, files: list[SourceFile], number: int) -> str:
    data = trees.write_tree(repo.objects, files)
    code = trees.write_tree(repo.objects, files[:1]).digest
    snapshot = planted.snapshot(
        code,
        config=trees.write_tree(repo.objects, []).digest,
        datasets=(Dataset(name="data", kind="files", tree=data.digest, size_bytes=data.size_bytes),),
        declared=Declared(wanted={"number": str(number)}),
    )
    observed = repo.objects.put_record(Observed(facts={"kernel": "6.1", "number": str(number)}))
    return planted.publish(
        repo, snapshot, created_s=1.0 + number, author="A. Uthor", message="a message", observed=observed
    )


def _run(repo: Repository, snapshot: str, scale: Scale, draw: random.Random) -> str:
    spec = LaunchSpec(command=("a.py",), seed=7)
    run = planted.run(repo, draw.randbytes(6).hex(), snapshot, spec=spec, name="first")
    planted.begin(repo, run.id, observed=repo.objects.put_record(Observed(facts={"kernel": "6.1"})))
    writer = planted.AttemptWriter(repo, run.id, 1)
    for rank in range(2):
        writer.append(str(rank), RankStarted(rank=rank, world=2, pid=1, facts={"threads": "1"}))
    for step in range(1, scale.batches):
        for rank in range(2):
            writer.append(str(rank), Step(step=step, quantities={"loss": draw.random().hex()}, tokens=512))
    for step in (1, 2):
        saved = write_parts(repo.objects, [("w", draw.randbytes(scale.saved_bytes)), ("rng", draw.randbytes(64))])
        kept = contents.content(repo.objects, world=2, blobs={"w": saved["w"][0]}, ranks=saved["rng"])
        planted.checkpoint(repo, run.id, step, kept)
    writer.append(NODE, AttemptEnded(outcome="finished", exit_code=0))
    return run.id
