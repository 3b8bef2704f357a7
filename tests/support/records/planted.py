"""Records that tests put straight into a store: trees, snapshots, runs, their ledgers and checkpoints.

Each is valid and minimal, so a test names only the fields that it is about.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.environment import Declared, Determinism, Observed
from m5ws.records.ledger import NODE, AttemptEnded, AttemptStarted, Event, NodeStarted
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.snapshot import Annotation, Code, Snapshot
from m5ws.records.tree import Entry, Pack, Slice, Tree
from m5ws.repository.files import trees
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import RankHeads
from m5ws.repository.objects import Objects
from m5ws.repository.references import checkpoints, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.workspace.checkouts import write


def whole(objects: Objects, data: bytes) -> Slice:
    """Store bytes as an object, and return the slice of the whole object."""
    digest = objects.put(data)
    return Slice(object=digest, offset=0, size_bytes=len(data), digest=digest)


def file(objects: Objects, path: bytes, data: bytes) -> Entry:
    """Store a file as an object, and return its entry in a tree."""
    part = whole(objects, data)
    return Entry(path=path, mode="file", size_bytes=len(data), digest=part.digest, parts=(part,))


def packed(repo: Repository, files: Mapping[bytes, bytes]) -> Digest:
    """Store small files, each in a pack, with their tree; return the tree's digest."""
    ordered = sorted(files.items())
    packs = {repo.objects.put(data): None for _, data in ordered if data}
    entries = [
        Entry(path=path, mode="file", size_bytes=len(data), digest=repo.objects.digest(data)) for path, data in ordered
    ]
    made = Tree(entries=tuple(entries), packs=tuple(Pack(object=pack, files=1) for pack in packs))
    return repo.objects.put_record(made)


def tree(repo: Repository, folder: Path, files: Mapping[str, str | bytes]) -> Digest:
    """Write files below `folder`, store them as a tree, and return its digest."""
    write(folder, files)
    return trees.write_tree(repo.objects, sources(folder, files)).digest


def sources(folder: Path, names: Iterable[str]) -> list[SourceFile]:
    """Return the files of `folder` as sources of a tree, by their paths below it."""
    return [SourceFile(path=name.encode(), location=folder / name) for name in names]


def snapshot(code: Digest, *, commit: str | None = None, dirty: bool = False, **fields: object) -> Snapshot:
    """Return a record with one tree for code and config, and with `fields`."""
    record = Snapshot(
        code=Code(commit=commit, dirty=dirty, tree=code),
        config=code,
        tokenizer=None,
        datasets=(),
        declared=Declared(),
        determinism=Determinism(),
    )
    return msgspec.structs.replace(record, **fields)


def publish(repo: Repository, record: Snapshot, **said: object) -> Digest:
    """Publish a snapshot with an annotation of the fields `said`, and return its id."""
    annotation = msgspec.structs.replace(Annotation(created_s=1.0), **said)
    return snapshots.publish(repo, record, annotation)


def run(repo: Repository, run_id: str, pinned: Digest = "0" * 64, **fields: object) -> Run:
    """Publish a run of a snapshot, which need not exist, and return it."""
    record = Run(id=run_id, snapshot=pinned, spec=LaunchSpec(command=("x.py",)))
    record = msgspec.structs.replace(record, **fields)
    runs.publish(repo, record)
    return record


class AttemptWriter:
    """Publishes events of an attempt, each time as the next batch of its one node. `heads` are by rank."""

    def __init__(self, repo: Repository, run_id: str, attempt: int) -> None:
        self._writer = ledger.ChainWriter(repo, run_id, attempt)
        self.heads = RankHeads(run_id, attempt)
        for batch in ledger.read(repo, run_id, attempt):
            for origin, event in ledger.stored_events(batch):
                self.heads.add(origin, bytes(event))

    def append(self, origin: str, *events: Event) -> None:
        """Publish events of one origin. An end of the attempt without heads gets the heads of its ranks."""
        stored = [codec.encode(self._filled(event)) for event in events]
        self._writer.append({origin: stored})
        for event in stored:
            self.heads.add(origin, event)

    def _filled(self, event: Event) -> Event:
        if isinstance(event, AttemptEnded) and not event.heads:
            return msgspec.structs.replace(event, heads=self.heads.by_rank)
        return event


def append(repo: Repository, run_id: str, attempt: int, origin: str, *events: Event) -> None:
    """Publish events of an origin as the next batch of an attempt; as `AttemptWriter.append`."""
    AttemptWriter(repo, run_id, attempt).append(origin, *events)


def begin(repo: Repository, run_id: str, attempt: int = 1, observed: Digest | None = None, **fields: object) -> None:
    """Publish the first events of an attempt, on a machine without facts unless `observed` has some."""
    seen = observed or repo.objects.put_record(Observed())
    started = msgspec.structs.replace(AttemptStarted(attempt=attempt, host="h"), **fields)
    append(repo, run_id, attempt, NODE, started, NodeStarted(node=0, host="h", observed=seen))


def date(repo: Repository, run_id: str, attempt: int, began_s: float) -> None:
    """Set the time of the first batch of an attempt, by the clock of a store in a directory."""
    assert isinstance(repo.store, LocalStore)
    os.utime(repo.store.root / f"runs/{run_id}/ledger/{attempt:04d}/0/{0:08d}", (began_s, began_s))


def checkpoint(repo: Repository, run_id: str, step: int, content: Content, **fields: object) -> Digest:
    """Publish a checkpoint of a run's first attempt, or as in `fields`, and return its record's digest."""
    pinned, stored = runs.load(repo, run_id).snapshot, repo.objects.put_record(content)
    record = Checkpoint(run=run_id, snapshot=pinned, attempt=1, step=step, content=stored)
    return checkpoints.publish(repo, msgspec.structs.replace(record, **fields))
