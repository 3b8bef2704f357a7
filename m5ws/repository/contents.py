"""The content of a checkpoint, read and written in parts, so that no reader needs the memory for all ranks.

A content lists parts, each with the shares of consecutive ranks. Only `tensors` returns tensors with all their shards.
Invariant: a rank's share and its digest depend on the state alone, and the parts on the sizes of shares.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.base import Count, Digest, Record
from m5ws.records.checkpoint import (
    DIGEST_BYTES,
    Axis,
    Box,
    Content,
    Kind,
    Locations,
    OwnTensor,
    Part,
    PartOf,
    Row,
    Shard,
    Share,
    Table,
    Tensor,
)
from m5ws.records.tree import Slice
from m5ws.repository import cuts
from m5ws.repository.objects import Objects

PART_BYTES = 2**20
"""Shares are joined to parts of at most this size. A larger share is a part of its own."""

NAME_CHARACTERS = 1024
"""Limit of a tensor's name: names of a table share their beginnings, so few bytes could need much memory."""

Slices = list[Slice]


class TableTensor(NamedTuple):
    """A tensor of a table: `axes` and `first` as in `records.checkpoint.Kind` and `Row`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[Axis, ...] | None = ()
    first: int = 0


# --- the table of tensors


def make_table(tensors: Iterable[TableTensor]) -> Table:
    """Return the record of tensors in order of names."""
    kinds: dict[Kind, int] = {}
    rows: list[Row] = []
    before = ""
    for tensor in tensors:
        kind = kinds.setdefault(Kind(tensor.dtype, tensor.shape, tensor.axes), len(kinds))
        shared = _shared(before, tensor.name)
        rows.append(Row(shared, tensor.name[shared:], kind, tensor.first))
        before = tensor.name
    return Table(kinds=tuple(kinds), rows=tuple(rows))


def _shared(a: str, b: str) -> int:
    """Return the number of characters with which both texts begin."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def load_table(objects: Objects, content: Content) -> list[TableTensor]:
    """Return the tensors of a content but for ranks' own, in order of names. Raises NotFound, CorruptObject."""
    if content.tensors is None:
        return []
    table = objects.get_record(content.tensors, Table)
    for kind in table.kinds:
        if any(axis.dimension >= len(kind.shape) for axis in kind.axes or ()):
            raise CorruptObject(f"the table {content.tensors} cuts a dimension that a tensor lacks")
    spans = [_span(kind.axes or ()) for kind in table.kinds]
    tensors: list[TableTensor] = []
    before = ""
    for row in table.rows:
        name = before[: row.shared] + row.rest
        is_known = row.kind < len(spans) and row.shared <= len(before) and len(name) <= NAME_CHARACTERS
        # The share after the last rank's has whole tensors, which have no axes.
        if not is_known or (tensors and name <= before) or row.first + spans[row.kind] > content.world:
            raise CorruptObject(f"the table {content.tensors} has an invalid row")
        kind = table.kinds[row.kind]
        tensors.append(TableTensor(name, kind.dtype, kind.shape, kind.axes, row.first))
        before = name
    return tensors


def _span(axes: Sequence[Axis]) -> int:
    """Return the number of consecutive ranks that have all regions of a formula; 0 without a cut."""
    last = sum((axis.pieces - 1) * axis.distance for axis in axes)
    return max(math.prod(axis.pieces for axis in axes), 1 + last) if axes else 0


# --- slices in columns


def locate(shards: Iterable[Sequence[Slice]]) -> tuple[Locations, tuple[int, ...]]:
    """Return the slices of shards in columns, and the number of slices of each shard; () if each has one."""
    objects: list[Digest] = []
    starts: list[int] = []
    last: dict[Digest, tuple[int, int]] = {}
    of, sizes, digests, counts = [], [], [], []
    for parts in shards:
        counts.append(len(parts))
        for part in parts:
            number, end = last.get(part.object, (-1, -1))
            is_object = part.offset == 0 and part.object == part.digest
            if is_object or part.offset != end:
                number = len(objects)
                objects.append(part.object)
                starts.append(0 if is_object else part.offset + 1)
            if not is_object:
                digests.append(part.digest)
                last[part.object] = number, part.offset + part.size_bytes
            of.append(number)
            sizes.append(part.size_bytes)
    steps = tuple(number - before for number, before in zip(of, [0, *of], strict=False))
    found = Locations(_joined(objects), tuple(starts), steps, tuple(sizes), _joined(digests))
    return found, () if all(count == 1 for count in counts) else tuple(counts)


def _joined(digests: Iterable[Digest]) -> bytes:
    return b"".join(map(bytes.fromhex, digests))


def _slices(locations: Locations) -> Iterator[Slice]:
    """Yield slices from their columns. Raises CorruptObject."""
    of = list(itertools.accumulate(locations.steps))
    ends = [start - 1 for start in locations.starts]
    lengths = len(of) - len(locations.sizes), len(ends) * DIGEST_BYTES - len(locations.objects)
    if any(lengths) or any(not 0 <= number < len(ends) for number in of):
        raise CorruptObject("a part of the checkpoint has slices without an object")
    position = 0
    for number, size_bytes in zip(of, locations.sizes, strict=True):
        named = locations.objects[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES].hex()
        if ends[number] < 0:
            yield Slice(object=named, offset=0, size_bytes=size_bytes, digest=named)
            continue
        digest = locations.digests[position : position + DIGEST_BYTES]
        position += DIGEST_BYTES
        if len(digest) != DIGEST_BYTES:
            raise CorruptObject("a part of the checkpoint has slices without a digest")
        yield Slice(object=named, offset=ends[number], size_bytes=size_bytes, digest=digest.hex())
        ends[number] += size_bytes


# --- shares


class Stored(NamedTuple):
    """The stored bytes of a region of a tensor: all of it in the share of a rank."""

    place: int
    box: Box | None
    parts: tuple[Slice, ...]


def make_share(
    stored: Sequence[Stored], own: Sequence[tuple[OwnTensor, Sequence[Slice]]] = (), blobs: Mapping[str, Slice] = {}
) -> Share:
    """Return a rank's share: shards in order of their places in the table, each with a box if its kind has none."""
    locations, counts = locate([*(each.parts for each in stored), *(parts for _, parts in own)])
    places = [each.place for each in stored]
    return Share(
        blobs=dict(blobs),
        rows=tuple(place - before for place, before in zip(places, [0, *places], strict=False)),
        boxes=tuple(each.box for each in stored if each.box is not None),
        own=tuple(tensor for tensor, _ in own),
        counts=counts,
        locations=locations,
    )


def shards(
    share: Share, rank: int, table: Sequence[TableTensor], wanted: Callable[[TableTensor], bool] | None = None
) -> Iterator[tuple[TableTensor, Shard]]:
    """Yield each tensor in a rank's share with its shard; only the tensors that are `wanted`, if given.

    Raises CorruptObject.
    """
    boxes, stored = iter(share.boxes), _slices(share.locations)
    places = list(itertools.accumulate(share.rows))
    total = len(places) + len(share.own)
    counts = share.counts or (1,) * total
    if (places and max(places) >= len(table)) or len(counts) != total:
        raise CorruptObject(f"the share of rank {rank} does not fit the checkpoint's table")
    for number, count in enumerate(counts):
        if number < len(places):
            tensor = table[places[number]]
            box = _box(tensor, rank) if tensor.axes is not None else next(boxes, None)
        else:
            own = share.own[number - len(places)]
            tensor = TableTensor(own.name, own.dtype, own.shape, None, rank)
            box = Box((0,) * len(own.shape), own.shape)
        parts = tuple(itertools.islice(stored, count))
        if box is None or len(parts) != count:
            raise CorruptObject(f"the share of rank {rank} lacks the location of {tensor.name}")
        if wanted is None or wanted(tensor):
            yield tensor, Shard(offsets=box.offsets, sizes=box.sizes, parts=parts)


def _box(tensor: TableTensor, rank: int) -> Box | None:
    return cuts.region(tensor.shape, tensor.axes or (), tensor.first, rank)


def slices(share: Share) -> Iterator[Slice]:
    """Yield all slices of a share. Raises CorruptObject."""
    yield from _slices(share.locations)
    yield from share.blobs.values()
    if share.state is not None:
        yield share.state


# --- parts


class Parts:
    """The shares of a content, read part by part; the last part that was read is kept.

    The share after the last rank's has whole tensors that rank 0 stored for all ranks.
    """

    def __init__(self, objects: Objects, content: Content) -> None:
        self._objects = objects
        self._listed = content.parts
        self.world = content.world
        self._firsts = [each.first for each in content.parts]
        self._held: tuple[int, Part] | None = None

    def share(self, rank: int) -> Share:
        """Return the share of a rank. Raises NotFound, CorruptObject."""
        number = bisect_right(self._firsts, rank) - 1
        part = self._part(number) if number >= 0 else None
        if part is None or not 0 <= rank - part.first < len(part.shares):
            raise CorruptObject(f"the checkpoint has no share of rank {rank}")
        return part.shares[rank - part.first]

    def near(self, rank: int) -> Iterator[tuple[int, Share]]:
        """Yield a rank and rank 0 with their shares, if the checkpoint has them. Raises NotFound, CorruptObject."""
        yield from ((number, self.share(number)) for number in dict.fromkeys((rank, 0)) if number < self.world)

    def all(self) -> Iterator[tuple[int, Share]]:
        """Yield each rank with its share, in order of ranks; last, the number of ranks with whole tensors for all.

        Raises NotFound, CorruptObject.
        """
        expected = 0
        for number in range(len(self._listed)):
            part = self._part(number)
            if part.first != expected:
                raise CorruptObject(f"the parts of the checkpoint lack rank {expected}")
            yield from enumerate(part.shares, part.first)
            expected += len(part.shares)
        if self._listed and expected not in (self.world, self.world + 1):
            raise CorruptObject(f"the checkpoint has the state of {expected} of {self.world} ranks")

    def _part(self, number: int) -> Part:
        if self._held is None or self._held[0] != number:
            listed = self._listed[number]
            part = self._objects.get_record(listed.part, Part)
            if part.first != listed.first:
                raise CorruptObject(f"part {listed.part} begins with rank {part.first} instead of {listed.first}")
            self._held = number, part
        return self._held[1]


def shares(objects: Objects, content: Content) -> Iterator[tuple[int, Share]]:
    """Yield each rank with its share, as `Parts.all`."""
    return Parts(objects, content).all()


def tensors(objects: Objects, content: Content, names: Collection[str] | None = None) -> list[Tensor]:
    """Return tensors with all their shards, in order of names; only the tensors in `names`, if given.

    Memory grows with the number of these tensors and of ranks. Raises NotFound, CorruptObject.
    """
    table = load_table(objects, content)
    wanted = None if names is None else lambda tensor: tensor.name in names
    found: dict[str, tuple[TableTensor, dict[tuple[int, ...], Shard]]] = {
        tensor.name: (tensor, {}) for tensor in table if names is None or tensor.name in names
    }
    for rank, share in shares(objects, content):
        for tensor, shard in shards(share, rank, table, wanted):
            # Ranks that hold copies of an irregular tensor may each have stored the same region.
            found.setdefault(tensor.name, (tensor, {}))[1].setdefault(shard.offsets, shard)
    return [
        Tensor(name=name, dtype=tensor.dtype, shape=tensor.shape, shards=tuple(held[at] for at in sorted(held)))
        for name, (tensor, held) in sorted(found.items())
    ]


def blobs(objects: Objects, content: Content) -> dict[str, Slice]:
    """Return the byte items of all ranks by name. Raises NotFound, CorruptObject."""
    return {name: blob for _, share in shares(objects, content) for name, blob in share.blobs.items()}


def find_blobs(parts: Parts, rank: int, names: Collection[str]) -> tuple[dict[str, Slice], dict[str, Tensor]]:
    """Return byte items by name, and the own tensors of the ranks that stored them.

    The shares of a rank and of rank 0 are read first, then all until all items are found. An item that no rank has is
    left out. Raises NotFound, CorruptObject.
    """
    found: dict[str, Slice] = {}
    held: dict[str, Tensor] = {}
    for source in (parts.near(rank), parts.all()):
        for number, share in source:
            if new := {name: blob for name, blob in share.blobs.items() if name in names}:
                found |= new
                own = shards(share, number, (), lambda tensor: tensor.axes is None)
                held |= {
                    tensor.name: Tensor(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, shards=(shard,))
                    for tensor, shard in own
                }
            if len(found) == len(names):
                return found, held
    return found, held


class _EncodedPart(Record, tag="part/1", frozen=True, kw_only=True):
    """A `Part` of encoded shares."""

    first: Count
    shares: tuple[msgspec.Raw, ...]


@dataclass(frozen=True)
class PartList:
    """Parts of consecutive ranks: parts that are stored, and encoded shares, after these, that are not yet."""

    stored: tuple[PartOf, ...]
    first: int
    waiting: tuple[bytes, ...]

    def joined(self, after: "PartList", put: Callable[[bytes], Digest]) -> "PartList":
        """Return both, where `after` begins with the next rank; `put` stores a part that is large enough."""
        waiting = sum(map(len, self.waiting)) + sum(map(len, after.waiting))
        if self.waiting and (after.stored or waiting > PART_BYTES):
            return PartList(self.all(put) + after.stored, after.first, after.waiting)
        first = after.first if not self.waiting else self.first
        return PartList(self.stored + after.stored, first, self.waiting + after.waiting)

    def all(self, put: Callable[[bytes], Digest]) -> tuple[PartOf, ...]:
        """Return all parts, and store the rest."""
        if not self.waiting:
            return self.stored
        part = _EncodedPart(first=self.first, shares=tuple(map(msgspec.Raw, self.waiting)))
        return (*self.stored, PartOf(self.first, put(codec.encode(part))))


def one_share(rank: int, share: Share) -> PartList:
    """Return the list that has the share of one rank."""
    return PartList((), rank, (codec.encode(share),))
