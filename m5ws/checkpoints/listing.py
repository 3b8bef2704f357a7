"""The checkpoints of a run, and the details of one. Reads only.

The added bytes of a checkpoint are the bytes of objects that no earlier checkpoint of its run uses. A damaged record
does not hide the other checkpoints.
"""

from collections.abc import Iterable

import msgspec

from m5ws.checkpoints import plain_state
from m5ws.checkpoints.plain_state import Leaf
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.errors import UNREADABLE
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.ledger import CheckpointPublished
from m5ws.records.tree import Slice
from m5ws.repository.concurrency import for_each
from m5ws.repository.ledger import ledger
from m5ws.repository.reachability.links import iter_links
from m5ws.repository.references import checkpoints
from m5ws.repository.references.checkpoints import Recorded
from m5ws.repository.repository import Repository


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in a list.

    `size_bytes` is its whole size, `new_bytes` the part that no earlier checkpoint of the run had. `counts` is False if
    an attempt published it after a newer attempt had begun. `when_s` is seconds since the epoch.
    """

    name: str
    step: int
    attempt: int
    when_s: float
    digest: Digest | None = None
    content: Digest | None = None
    format: str = ""
    world: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    kept: bool = False
    counts: bool = True
    problem: str | None = None


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored tensor as a whole, whatever the number of its shards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shards: int


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a checkpoint. `ledger` maps each rank to its chain's head at that step."""

    name: str
    run: str
    snapshot: Digest
    attempt: int
    step: int
    digest: Digest
    content: Digest
    format: str
    world: int
    when_s: float
    size_bytes: int
    kept: bool
    counts: bool
    tensors: tuple[TensorRow, ...]
    state: tuple[Leaf, ...]
    ledger: dict[str, Digest]


def list_checkpoints(repo: Repository, run: str, progress: Progress | None = None) -> list[CheckpointInfo]:
    """Return every published checkpoint in order of steps, also checkpoints that do not count."""
    names = checkpoints.names(repo, run)
    valid, kept = set(checkpoints.valid(repo, run)), set(checkpoints.kept(repo, run))
    recorded = _recorded(repo, run)
    when = _moments(repo, run, recorded)
    read = for_each(lambda name: _read(repo, run, name, recorded), names)
    rows: list[CheckpointInfo] = []
    seen: set[bytes] = set()
    for number, (name, records) in enumerate(zip(names, read, strict=True)):
        row = CheckpointInfo(
            name=name,
            step=checkpoints.step_of(name),
            attempt=checkpoints.attempt_of(name),
            when_s=when.get(name, 0.0),
            kept=name in kept,
            counts=name in valid,
        )
        rows.append(_filled(row, records, seen))
        report(progress, "reading checkpoints", number + 1, len(names))
    return rows


def view(repo: Repository, which: CheckpointRef) -> CheckpointView:
    """Return the details of a checkpoint. Raises NotFound, CorruptObject."""
    record = repo.objects.get_record(which.digest, Checkpoint)
    content = repo.objects.get_record(record.content, Content)
    return CheckpointView(
        name=which.name,
        run=record.run,
        snapshot=record.snapshot,
        attempt=record.attempt,
        step=record.step,
        digest=which.digest,
        content=record.content,
        format=content.format,
        world=content.world,
        when_s=_moments(repo, record.run, _recorded(repo, record.run)).get(which.name, 0.0),
        size_bytes=sum(part.size_bytes for part in _slices(repo, record.content, content)),
        kept=which.name in checkpoints.kept(repo, record.run),
        counts=which.name in checkpoints.valid(repo, record.run),
        tensors=tuple(_tensors(content)),
        state=tuple(plain_state.leaves(repo.objects, content)),
        ledger=record.ledger,
    )


def _recorded(repo: Repository, run: str) -> dict[str, CheckpointPublished]:
    """Return the ledger's events of a run's checkpoints."""
    return {
        event.name: event
        for attempt in ledger.attempts(repo, run)
        for event in ledger.published(repo, run, attempt)
        if isinstance(event, CheckpointPublished)
    }


def _moments(repo: Repository, run: str, recorded: Recorded) -> dict[str, float]:
    """Return the time of each checkpoint's publication, from the ledger, or else from the store's clock."""
    stored = repo.store.list(checkpoints.key(run, ""))
    times = {stat.key.rpartition("/")[2]: stat.modified_s for stat in stored}
    return times | {name: event.time_s for name, event in recorded.items() if name in times}


_Read = tuple[Digest, Checkpoint, Content, tuple[Slice, ...]] | str


def _read(repo: Repository, run: str, name: str, recorded: Recorded) -> _Read:
    """Return a checkpoint's records and slices, or the message of their fault."""
    try:
        digest, record = checkpoints.find(repo, run, name, recorded)
        content = repo.objects.get_record(record.content, Content)
        return digest, record, content, tuple(_slices(repo, record.content, content))
    except UNREADABLE as error:
        return str(error)


def _filled(row: CheckpointInfo, records: _Read, seen: set[bytes]) -> CheckpointInfo:
    """Return a row with the fields of its records. Adds the objects that they use to `seen`."""
    if isinstance(records, str):
        return msgspec.structs.replace(row, problem=records)
    digest, record, content, slices = records
    unique = {(part.object, part.offset): part.size_bytes for part in slices}
    new = sum(size for (name, _), size in unique.items() if bytes.fromhex(name) not in seen)
    seen.update(bytes.fromhex(name) for name, _ in unique)
    return msgspec.structs.replace(
        row,
        digest=digest,
        content=record.content,
        format=content.format,
        world=content.world,
        size_bytes=sum(part.size_bytes for part in slices),
        new_bytes=new,
    )


def _slices(repo: Repository, digest: Digest, content: Content) -> Iterable[Slice]:
    """Return every part of a content."""
    return (part for part in iter_links(repo.objects, digest, content) if isinstance(part, Slice))


def _tensors(content: Content) -> Iterable[TensorRow]:
    for tensor in content.tensors:
        parts = [part for shard in tensor.shards for part in shard.parts]
        yield TensorRow(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            size_bytes=sum(part.size_bytes for part in parts),
            shards=len(tensor.shards),
        )
