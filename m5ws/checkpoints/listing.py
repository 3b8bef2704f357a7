"""The checkpoints of a run, and the details of one. Reads only.

The added bytes of a checkpoint are the bytes of objects that no earlier checkpoint of its run uses. A damaged record
does not hide the other checkpoints.
"""

import math
from collections.abc import Iterator
from functools import partial

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
from m5ws.repository import contents, cuts
from m5ws.repository.concurrency import Job, bounded_map, for_each
from m5ws.repository.contents import TableTensor
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints
from m5ws.repository.references.checkpoints import Recorded
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import ITEM_BYTES

_PART_BYTES = 2**23
"""Memory for a part of a checkpoint, and for the objects that it names."""


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
    roots = list(for_each(lambda name: _read(repo, run, name, recorded), names))
    sizes = bounded_map(_job(repo, records) for records in roots)
    rows: list[CheckpointInfo] = []
    seen: set[bytes] = set()
    for number, (name, records, measured) in enumerate(zip(names, roots, sizes, strict=True)):
        row = CheckpointInfo(
            name=name,
            step=checkpoints.step_of(name),
            attempt=checkpoints.attempt_of(name),
            when_s=when.get(name, 0.0),
            kept=name in kept,
            counts=name in valid,
        )
        rows.append(_filled(row, records, measured, seen))
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
        size_bytes=sum(part.size_bytes for part in _slices(repo, content)),
        kept=which.name in checkpoints.kept(repo, record.run),
        counts=which.name in checkpoints.valid(repo, record.run),
        tensors=tuple(_tensors(repo, content)),
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


_Root = tuple[Digest, Checkpoint, Content]
_Sizes = tuple[int, dict[bytes, int]]
"""The size of all slices, and the bytes of each object that the slices need."""


def _read(repo: Repository, run: str, name: str, recorded: Recorded) -> _Root | str:
    """Return a checkpoint's records, or the message of their fault."""
    try:
        digest, record = checkpoints.find(repo, run, name, recorded)
        return digest, record, repo.objects.get_record(record.content, Content)
    except UNREADABLE as error:
        return str(error)


def _measured(repo: Repository, records: _Root | str) -> _Sizes | str:
    """Return the sizes of a checkpoint, or the message of a fault."""
    if isinstance(records, str):
        return records
    total, needed = 0, dict[bytes, int]()
    try:
        for part in _slices(repo, records[2]):
            name = bytes.fromhex(part.object)
            needed[name] = max(needed.get(name, 0), part.offset + part.size_bytes)
            total += part.size_bytes
    except UNREADABLE as error:
        return str(error)
    return total, needed


def _job(repo: Repository, records: _Root | str) -> Job[_Sizes | str]:
    parts = 0 if isinstance(records, str) else len(records[2].parts)
    return _PART_BYTES * parts, partial(_measured, repo, records)


def _filled(row: CheckpointInfo, records: _Root | str, sizes: _Sizes | str, seen: set[bytes]) -> CheckpointInfo:
    """Return a row with the fields of its records. Adds the objects that they use to `seen`."""
    if isinstance(records, str) or isinstance(sizes, str):
        return msgspec.structs.replace(row, problem=sizes)
    digest, record, content = records
    size_bytes, needed = sizes
    new = sum(size for name, size in needed.items() if name not in seen)
    seen.update(needed)
    return msgspec.structs.replace(
        row,
        digest=digest,
        content=record.content,
        format=content.format,
        world=content.world,
        size_bytes=size_bytes,
        new_bytes=new,
    )


def _slices(repo: Repository, content: Content) -> Iterator[Slice]:
    """Yield every slice of a content, part by part."""
    yield from (part for part in (content.common, content.fingerprints) if part is not None)
    for _, share in contents.shares(repo.objects, content):
        yield from contents.slices(share)


def _tensors(repo: Repository, content: Content) -> Iterator[TensorRow]:
    """Yield the tensors in order of names. Shards of regular tensors are counted by their formula, per kind."""
    table = contents.load_table(repo.objects, content)
    rows = {tensor.name: _empty_row(tensor) for tensor in table}
    for rank, share in contents.shares(repo.objects, content):
        for tensor, shard in contents.shards(share, rank, table, _is_irregular):
            row = rows.get(tensor.name) or _empty_row(tensor)
            size_bytes = row.size_bytes + sum(part.size_bytes for part in shard.parts)
            rows[tensor.name] = msgspec.structs.replace(row, size_bytes=size_bytes, shards=row.shards + 1)
    # After the shares were read: a formula has at most as many regions as there are ranks.
    counts: dict[tuple[object, ...], int] = {}
    for tensor in table:
        if tensor.axes is not None and not _is_irregular(tensor):
            kind = tensor.shape, tensor.axes
            if kind not in counts:
                counts[kind] = cuts.count(tensor.shape, tensor.axes)
            size_bytes = math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
            rows[tensor.name] = msgspec.structs.replace(rows[tensor.name], size_bytes=size_bytes, shards=counts[kind])
    yield from (rows[name] for name in sorted(rows))


def _empty_row(tensor: TableTensor) -> TensorRow:
    return TensorRow(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, size_bytes=0, shards=0)


def _is_irregular(tensor: TableTensor) -> bool:
    """Return True if the shards of a tensor have no formula, or its type has no known size."""
    return tensor.axes is None or tensor.dtype not in ITEM_BYTES
