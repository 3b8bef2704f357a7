"""A workspace with at least two references of every kind in its store, and the table of kinds in docs/format.md."""

import re
from pathlib import Path

import msgspec

from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.canary import Canary
from m5ws.records.checkpoint import Checkpoint, Content, Shard, Tensor
from m5ws.records.gc import GcExecution, GcResult, Keep, RetentionRules
from m5ws.records.incident import Incident
from m5ws.records.job import Cancel, Job
from m5ws.records.known import Known
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Event, RankEnded, RankStarted, State, Step
from m5ws.records.log import LOGS, LogPart, StoredLines
from m5ws.records.note import Note
from m5ws.records.outputs import OutputFiles
from m5ws.records.reasons import JointReason
from m5ws.records.removal import Removal
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.sample_counts import SAMPLES, SampleCounts
from m5ws.records.verdict import JointVerdict, Outcome, Verdict
from m5ws.repository import bindings, reindex, removals
from m5ws.repository import gc_plans as plans
from m5ws.repository.gc import gc
from m5ws.repository.references import canaries, checkpoints, incidents, jobs, known, notes, outputs, runs
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.records import contents, planted

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"
A, B = "a" * 12, "b" * 12
EQUAL, DIVERGED, OTHER = "c" * 12, "d" * 12, "e" * 12
"""Two replays of A, and one of B."""
GONE = ("8" * 12, "9" * 12)
"""Two removed runs without attempts."""
SPEC = LaunchSpec(command=("train.py",), trainer="python", outputs=("out",))


class Row(msgspec.Struct, frozen=True):
    """A kind of reference: the form of its keys, its record, and the fields that must match."""

    pattern: str
    record: str
    match: str
    against: str

    @property
    def bound(self) -> bool:
        return not self.match.startswith("nothing")

    def fits(self, key: str) -> bool:
        form = re.sub(r"<\w+>", "[^/]+", self.pattern.replace(".", r"\."))
        return re.fullmatch(form + ".*" if form.endswith("/") else form, key) is not None


def rows() -> list[Row]:
    """Return the table of the section "Bindings"."""
    section = FORMAT.read_text().split("## Bindings")[1].split("\n## ")[0]
    return [Row(*cells) for cells in _cells(section)]


def patterns() -> list[str]:
    """Return the forms of keys in the table of the section "Keys"."""
    return [cells[0] for cells in _cells(FORMAT.read_text().split("## Keys")[1].split("\n## ")[0])]


def _cells(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [[cells[0].strip("`"), cells[1].strip("`"), *cells[2:]] for cells in found]


class World:
    """The workspace. `put` writes bytes under a key, and `undo` restores the original bytes of all keys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store_dir = root / ".m5ws" / "store"
        self.store_dir.mkdir(parents=True)
        (root / "m5ws.toml").write_text("[mlflow]\nenabled = false\n")
        self.repo = Repository.create(LocalStore(self.store_dir, durable=False))
        self._before: dict[str, bytes] = {}
        _fill(self.repo, root)

    @property
    def keys(self) -> list[str]:
        return [stat.key for stat in self.repo.store.list("")]

    def of(self, row: Row) -> list[str]:
        return [key for key in self.keys if row.fits(key)]

    def get(self, key: str) -> bytes:
        return (self.store_dir / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        self._before.setdefault(key, self.get(key))
        (self.store_dir / key).chmod(0o644)
        (self.store_dir / key).write_bytes(data)

    def swap(self, one: str, other: str) -> None:
        data = self.get(one)
        self.put(one, self.get(other))
        self.put(other, data)

    def undo(self) -> None:
        before, self._before = self._before, {}
        for key, data in before.items():
            (self.store_dir / key).write_bytes(data)


def _fill(repo: Repository, root: Path) -> None:
    for number, name in enumerate((A, B), 1):
        code = planted.tree(repo, root / name, {"train.py": f"print({number})\n"})
        snapshot = planted.snapshot(code)
        planted.publish(repo, snapshot, created_s=number + 0.125, message=f"{name} first")
        pinned = planted.publish(repo, snapshot, created_s=number + 0.5, message=f"{name} later")
        _train(repo, planted.run(repo, name, pinned, spec=SPEC, created_s=float(number)), 3 - number)
    _replay(repo, runs.load(repo, A), EQUAL, "reproduced")
    _replay(repo, runs.load(repo, A), DIVERGED, "diverged")
    _replay(repo, runs.load(repo, B), OTHER, "reproduced")
    for name, labels in ((A, (1, 2)), (B, (1,))):
        for step in labels:
            checkpoints.keep(repo, name, checkpoints.name(step, 1))
        for when in (1.0, 2.0):
            runs.publish_joint(
                repo,
                JointVerdict(run=name, outcome="sampled", reason=JointReason(kind="no verdict"), of=2, created_s=when),
            )
            notes.publish(repo, Note(run=name, text=f"at {when}", created_s=when))
            job = Job(
                run=name, name=f"m5ws-{name}-{when:.0f}", cluster="big", engine="slurm", nodes=2, settings="{}",
                script="#!/bin/bash\n", created_s=when,
            )  # fmt: skip
            jobs.publish(repo, job)
            key = f"{LOGS}{name}/0001-0-{when:06.0f}"
            data = msgspec.msgpack.encode({"0": StoredLines(first=0, lines=("a",))})
            part = LogPart(run=name, attempt=1, node=0, time_s=when, size_bytes=len(data), logs=codec.compress(data))
            bindings.create(repo.store, key, part)
            incident = Incident(run=name, attempt=int(when), time_s=when, outcome="failed", step=1)
            incidents.publish(repo, incident)
            canary = Canary(
                snapshot=runs.load(repo, name).snapshot, kind=name, facts={}, outcome="ok", host="n1", steps=2,
                created_s=when,
            )  # fmt: skip
            canaries.publish(repo, canary)
            arithmetic = Known(kind=name, host="n1", facts={}, digests={"cpu": "0" * 64}, created_s=when)
            known.publish(repo, arithmetic)
            counted = f"{SAMPLES}{runs.load(repo, name).snapshot}/r-{when:.0f}"
            bindings.create(repo.store, counted, SampleCounts(counts=(1, 2)))
            jobs.cancel(repo, Cancel(run=name, attempt=0, jobs=(job.name,), created_s=when))
        for number in range(2):
            _copy(repo, runs.load(repo, name), number)
    for number, name in enumerate(GONE):
        planted.run(repo, name, runs.load(repo, A).snapshot, spec=SPEC, created_s=float(number))
        removals.publish(repo, Removal(run=name, created_s=3.0))
    reindex.fill(repo)


def _train(repo: Repository, run: Run, attempts: int) -> None:
    """Write the ledger of a run. Each attempt does two steps, with a checkpoint after each."""
    made: list[str] = []
    for attempt in range(1, attempts + 1):
        planted.begin(repo, run.id, attempt, inherits=tuple(made), resume=made[-1] if made else None)
        writer = planted.AttemptWriter(repo, run.id, attempt)
        told: list[Event] = [RankStarted(rank=0, world=1, pid=1)]
        for step in (2 * attempt - 1, 2 * attempt):
            writer.append("0", *told, _step(run, step, 2 * attempts), State(step=step))
            saved = _save(repo, run, attempt, step, dict(writer.heads.by_rank))
            told, made = [saved], [*made, saved.name]
        writer.append("0", *told, RankEnded(rank=0))
        writer.append(NODE, AttemptEnded(outcome="interrupted", exit_code=130))


def _step(run: Run, step: int, total: int) -> Step:
    return Step(step=step, quantities={"loss": f"{run.snapshot[:8]}{step}"}, total=total)


def _save(repo: Repository, run: Run, attempt: int, step: int, heads: dict[str, Digest]) -> CheckpointPublished:
    part = planted.whole(repo.objects, f"{run.snapshot[:6]}{step:02d}".encode())
    shard = Shard(offsets=(0,), sizes=(2,), parts=(part,))
    tensor = Tensor(name="model.weight", dtype="float32", shape=(2,), shards=(shard,))
    content = repo.objects.put_record(contents.content(repo.objects, world=1, tensors=(tensor,)))
    record = Checkpoint(run=run.id, snapshot=run.snapshot, attempt=attempt, step=step, content=content, ledger=heads)
    name, digest = checkpoints.name(step, attempt), checkpoints.publish(repo, record)
    return CheckpointPublished(step=step, name=name, checkpoint=digest, content=content)


def _replay(repo: Repository, run: Run, name: str, outcome: Outcome) -> None:
    """Publish a replay of one step, and its verdict."""
    replay = planted.run(
        repo, name, run.snapshot, spec=SPEC, purpose="reproduce", reproduces=run.id, created_s=run.created_s + 10
    )
    saved = _save(repo, replay, 1, 1, {})
    planted.begin(repo, name)
    done = (RankStarted(rank=0, world=1, pid=1), _step(replay, 1, 1), State(step=1), saved, RankEnded(rank=0))
    planted.append(repo, name, 1, "0", *done)
    planted.append(repo, name, 1, NODE, AttemptEnded(outcome="finished", exit_code=0))
    runs.publish_verdict(repo, Verdict(run=run.id, replay=name, outcome=outcome, compared={"steps": 2}, created_s=20.0))


def _copy(repo: Repository, run: Run, number: int) -> None:
    tree = planted.packed(repo, {b"out/a": f"{run.id} {number}".encode()})
    content = repo.objects.put_record(Content(format="files/1", world=1, tree=tree))
    made = OutputFiles(run=run.id, snapshot=run.snapshot, attempt=2, node=0, moment=f"{number:06d}", content=content)
    outputs.publish(repo, made)


def plan(repo: Repository) -> None:
    """Add gc plans: two in progress, with parts and keeps, and two that are done."""
    for number in range(4):
        repo.objects.put(f"left behind {number}".encode())
    for rules in (RetentionRules(last=1), RetentionRules(every=2)):
        name = gc.plan(repo, rules, -60.0, part_objects=4).id
        assert name is not None
        for number in range(2):
            keep = Keep(digests=bytes([number]) * 32)
            bindings.create(repo.store, f"{plans.folder(name, 'keep')}{number}", keep)
        bindings.create(repo.store, plans.state_key(name, "executing"), GcExecution(holder=name, host="h"))
    for name in ("20200101T000000Z-00000000", "20200102T000000Z-00000000"):
        bindings.create(
            repo.store, plans.state_key(name, "done"), GcResult(checkpoints=0, objects=0, size_bytes=0, spared=0)
        )
