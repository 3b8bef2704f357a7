"""The bytes of a stored tensor in row-major order, independent of its stored shards.

No tensor library is needed. A shard is a box of a grid, and a box consists of runs of consecutive bytes in stored
parts. Each part is verified whole when it is read, and kept for a while if it is needed again.
"""

import itertools
import math
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Box as Region
from m5ws.records.checkpoint import Tensor
from m5ws.records.tree import Slice
from m5ws.repository import cuts
from m5ws.repository.objects import Objects

WINDOW_BYTES = 16 * 2**20
"""Bytes read at a time from a tensor with parts that are not consecutive."""

_HELD_BYTES = 256 * 2**20
_SIZES = {
    1: (
        "bool",
        "uint8",
        "int8",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ),
    2: ("bfloat16", "float16", "int16", "uint16"),
    4: ("float32", "int32", "uint32", "complex32"),
    8: ("float64", "int64", "uint64", "complex64"),
    16: ("complex128",),
}
ITEM_BYTES = {name: size for size, names in _SIZES.items() for name in names}
"""Size of an element by torch's name of its type."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A box of a tensor's grid. Its row-major bytes are the bytes of the concatenated `parts`, after `skip_bytes`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    parts: tuple[Slice, ...]
    skip_bytes: int = 0


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor and the locations of its elements. `grid` is the shape that boxes refer to: `shape`, or one flat row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return item_bytes(self.dtype)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.item_bytes


def item_bytes(dtype: str) -> int:
    """Return the size of an element in bytes, by torch's name of its type. Raises UnknownSchema."""
    if dtype not in ITEM_BYTES:
        raise UnknownSchema(f"tensor type {dtype!r} is unknown to this m5ws")
    return ITEM_BYTES[dtype]


def layout(record: Tensor, name: str | None = None) -> Layout:
    """Return the layout of a stored tensor, under another name if one is given. Raises CorruptObject."""
    boxes = tuple(Box(offsets=shard.offsets, sizes=shard.sizes, parts=shard.parts) for shard in record.shards)
    whole = Layout(name=name or record.name, dtype=record.dtype, shape=record.shape, grid=record.shape, boxes=boxes)
    for box in boxes:
        _check(whole, box)
    regions = [Region(shard.offsets, shard.sizes) for shard in record.shards if all(shard.sizes)]
    if whole.size_bytes and not cuts.fill(Region((0,) * len(record.shape), record.shape), regions):
        raise CorruptObject(f"the shards of tensor {record.name} do not fill the tensor")
    return whole


def _check(whole: Layout, box: Box) -> None:
    """Raise CorruptObject if a shard is outside its tensor, or its length does not match its sizes."""
    within = len(whole.shape) == len(box.offsets) == len(box.sizes) and all(
        offset + size <= length for offset, size, length in zip(box.offsets, box.sizes, whole.shape, strict=True)
    )
    held = sum(part.size_bytes for part in box.parts)
    if not within or held != math.prod(box.sizes) * whole.item_bytes:
        raise CorruptObject(
            f"a shard of tensor {whole.name} is outside of the tensor, or {held} bytes do not match its sizes"
        )


class PartCache:
    """Parts of objects: each is read once at a time, and kept within a limit. Thread-safe."""

    def __init__(self, objects: Objects, held_bytes: int = _HELD_BYTES) -> None:
        self._objects = objects
        self._limit = held_bytes
        self._held: OrderedDict[tuple[Digest, int], Future[bytes]] = OrderedDict()
        self._sizes = 0
        self._lock = threading.Lock()

    def get(self, part: Slice, *, once: bool = False) -> bytes:
        """Return a part, and keep it unless it is needed `once`. Raises NotFound, CorruptObject."""
        if once:
            return self._objects.read(part)
        place = (part.object, part.offset)
        with self._lock:
            future = self._held.get(place)
            mine = future is None
            if future is None:
                future = self._held[place] = Future()
                self._sizes += part.size_bytes
            self._held.move_to_end(place)
            self._drop(place)
        if mine:
            try:
                future.set_result(self._objects.read(part))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def _drop(self, newest: tuple[Digest, int]) -> None:
        """Forget the least recently used parts. A caller's references stay valid."""
        for place in list(self._held):
            if self._sizes <= self._limit:
                return
            future = self._held[place]
            if place != newest and future.done():
                del self._held[place]
                self._sizes -= len(future.result()) if future.exception() is None else 0


class TensorReader:
    """One tensor's bytes by their position."""

    def __init__(self, parts: PartCache, layout: Layout) -> None:
        self._parts = parts
        self._boxes = [_PlacedBox(box, layout.grid, layout.item_bytes) for box in layout.boxes]
        self.layout = layout

    def windows(self) -> list[tuple[int, int]]:
        """Return consecutive ranges of bytes that cover the tensor, so that each part is needed once.

        No range is longer than a chunk, and each starts at an element.
        """
        end, item = self.layout.size_bytes, self.layout.item_bytes
        edges = {0, end}
        for box in self._boxes:
            if not box.consecutive:
                edges.update(range(0, end, WINDOW_BYTES))
            else:
                edges.update(edge - edge % item for edge in box.edges() if 0 < edge < end)
        return list(itertools.pairwise(sorted(edges)))

    def read(self, start: int, end: int) -> bytearray:
        """Return bytes [start, end), verified. Raises NotFound, CorruptObject."""
        data = bytearray(end - start)
        target, filled = memoryview(data), 0
        for box in self._boxes:
            for place, local, length in box.runs(start, end):
                filled += length
                self._fill(box, target[place - start : place - start + length], local)
        if filled != end - start:
            raise CorruptObject(f"the shards of tensor {self.layout.name} do not fill the tensor")
        return data

    def _fill(self, box: "_PlacedBox", target: memoryview, local: int) -> None:
        for part, offset, length in box.pieces(local, len(target)):
            data = self._parts.get(part, once=length == part.size_bytes)
            target[:length] = memoryview(data)[offset : offset + length]
            target = target[length:]


class _PlacedBox:
    """A box with its strides in bytes and the offsets of its parts."""

    def __init__(self, box: Box, grid: Sequence[int], item: int) -> None:
        # A tensor without dimensions is a row of one element.
        self._grid = tuple(grid) or (1,)
        self._offsets, self._sizes = (box.offsets, box.sizes) if grid else ((0,), (1,))
        self._strides = [item * math.prod(self._grid[d + 1 :]) for d in range(len(self._grid))]
        self._own = [item * math.prod(self._sizes[d + 1 :]) for d in range(len(self._grid))]
        self._parts = box.parts
        self._starts = list(itertools.accumulate((part.size_bytes for part in box.parts), initial=0))
        self._skip = box.skip_bytes
        partial = [d for d, size in enumerate(self._sizes) if size != self._grid[d]]
        self._depth = partial[-1] if partial else 0
        self.consecutive = math.prod(self._sizes[: self._depth]) <= 1

    @property
    def _first(self) -> int:
        return sum(offset * stride for offset, stride in zip(self._offsets, self._strides, strict=True))

    def edges(self) -> Iterator[int]:
        """Yield the offsets in the tensor at which parts begin and end, for a consecutive box."""
        first, length = self._first, self._sizes[0] * self._own[0]
        yield from (first, first + length)
        yield from (first + start - self._skip for start in self._starts if 0 < start - self._skip < length)

    def runs(self, start: int, end: int, d: int = 0, base: int = 0, local: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of bytes [start, end) in this box: offset in the tensor, offset in the box, length."""
        stride, offset, size = self._strides[d], self._offsets[d], self._sizes[d]
        if d == self._depth:
            place = base + offset * stride
            low, high = max(start, place), min(end, place + size * stride)
            if low < high:
                yield low, local + low - place, high - low
            return
        first = max(0, (start - base) // stride - offset)
        last = min(size, -((base - end) // stride) - offset)
        for index in range(first, last):
            yield from self.runs(start, end, d + 1, base + (offset + index) * stride, local + index * self._own[d])

    def pieces(self, local: int, length: int) -> Iterator[tuple[Slice, int, int]]:
        """Yield the parts of `length` bytes of the box from `local` on: part, offset in it, length."""
        position, end = local + self._skip, local + self._skip + length
        number = bisect_right(self._starts, position) - 1
        while position < end and number < len(self._parts):
            part, begin = self._parts[number], self._starts[number]
            count = min(end, begin + part.size_bytes) - position
            if count > 0:
                yield part, position - begin, count
            position, number = position + count, number + 1
