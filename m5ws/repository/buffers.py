"""Conversion between buffers and slices of stored objects.

Large buffers are split on a fixed grid of `Format.chunk_bytes`, one object per piece. Small buffers are joined into
packs in the given order. The object of a byte depends only on sizes and order.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from m5ws.errors import CorruptObject
from m5ws.records.tree import Slice
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.objects import Objects
from m5ws.store.interface import Buffer

_DENSE = 4
"""An object is read whole if at least this fraction of it (1/4) is needed."""

Reading = tuple[Slice, memoryview]
"""A slice, and memory of the same length to read it into."""


def write_parts(objects: Objects, items: Iterable[tuple[str, Buffer]]) -> dict[str, tuple[Slice, ...]]:
    """Make buffers durable, and return the slices of each by name. An empty buffer has no slices.

    Existing objects are not uploaded. The buffers may be
    reused afterwards.
    """
    slices: dict[str, list[Slice]] = {}
    for written in bounded_map(_writing(objects, items, slices)):
        for name, part in written:
            slices[name].append(part)
    return {name: tuple(parts) for name, parts in slices.items()}


def read_parts(objects: Objects, readings: Sequence[Reading]) -> None:
    """Fill memory with verified slices. Raises NotFound, CorruptObject.

    Several slices of one object are read together.
    """
    by_object: dict[str, list[Reading]] = {}
    for reading in readings:
        by_object.setdefault(reading[0].object, []).append(reading)
    for _ in bounded_map(_reading(objects, by_object.values())):
        pass


def into(parts: Sequence[Slice], memory: memoryview, what: str) -> list[Reading]:
    """Return the readings that fill memory with the concatenated `parts`.

    Raises CorruptObject for another total length.
    """
    if sum(part.size_bytes for part in parts) != memory.nbytes:
        raise CorruptObject(f"the stored parts of {what} do not have the length that its shape and type need")
    readings, position = [], 0
    for part in parts:
        readings.append((part, memory[position : position + part.size_bytes]))
        position += part.size_bytes
    return readings


def _writing(
    objects: Objects, items: Iterable[tuple[str, Buffer]], slices: dict[str, list[Slice]]
) -> Iterator[Job[list[tuple[str, Slice]]]]:
    """Yield jobs that store chunks of large buffers and packs of small buffers. Each name is added to `slices`."""
    form = objects.format
    pack: list[tuple[str, memoryview]] = []
    size = 0
    for name, buffer in items:
        slices[name] = []
        view = memoryview(buffer).cast("B")
        if view.nbytes >= form.small_bytes:
            for start in range(0, view.nbytes, form.chunk_bytes):
                piece = view[start : start + form.chunk_bytes]
                yield piece.nbytes, partial(_put_chunk, objects, name, piece)
        elif view.nbytes:
            if size + view.nbytes > form.pack_bytes:
                yield 2 * size, partial(_put_pack, objects, pack)
                pack, size = [], 0
            pack.append((name, view))
            size += view.nbytes
    if pack:
        yield 2 * size, partial(_put_pack, objects, pack)


def _put_chunk(objects: Objects, name: str, piece: memoryview) -> list[tuple[str, Slice]]:
    digest = objects.put_if_absent(piece)
    return [(name, Slice(object=digest, offset=0, size_bytes=piece.nbytes, digest=digest))]


def _put_pack(objects: Objects, pack: list[tuple[str, memoryview]]) -> list[tuple[str, Slice]]:
    joined = b"".join(view for _, view in pack)
    digest = objects.put_if_absent(joined)
    parts, offset = [], 0
    for name, view in pack:
        part = Slice(object=digest, offset=offset, size_bytes=view.nbytes, digest=objects.digest(view))
        parts.append((name, part))
        offset += view.nbytes
    return parts


def _reading(objects: Objects, groups: Iterable[list[Reading]]) -> Iterator[Job[None]]:
    for readings in groups:
        extent = max(part.offset + part.size_bytes for part, _ in readings)
        if len(readings) > 1 and extent <= _DENSE * sum(part.size_bytes for part, _ in readings):
            yield extent, partial(_read_whole, objects, readings)
        else:
            for part, target in readings:
                yield part.size_bytes, partial(_read_one, objects, part, target)


def _read_whole(objects: Objects, readings: list[Reading]) -> None:
    pieces = objects.pieces(readings[0][0].object, [part for part, _ in readings])
    for (_, target), piece in zip(readings, pieces, strict=True):
        target[:] = piece


def _read_one(objects: Objects, part: Slice, target: memoryview) -> None:
    target[:] = objects.read(part)
