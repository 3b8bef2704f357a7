"""Differences between two checkpoints: tensors by name, element by element, and other state value by value.

Digests come first: parts with equal digests are not read. Other parts are read in windows, so memory is bounded. Bits
are compared, never values: -0.0 differs from +0.0, and NaNs with different bits differ.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from m5ws.checkpoints import plain_state
from m5ws.checkpoints.plain_state import StateChange
from m5ws.checkpoints.resolve import CheckpointRef
from m5ws.progress import Progress
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.verdict import ElementDifferences
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.files.trees import load as load_tree
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import Layout, PartCache, TensorReader, layout

CompareBits = Callable[[bytearray, bytearray, str, int], ElementDifferences]
"""Compares two buffers of equal length: torch's name of their type, and the index of their first element
(training/tools/compare_bits.py).
"""
Kind = Literal["only in a", "only in b", "type", "shape", "bits"]


class TensorChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that differs. `a` and `b` are its type and shape. `elements` is None if the tensor was not read.

    `first_index` is the index in the tensor of the first element that differs.
    """

    name: str
    kind: Kind
    a: str | None = None
    b: str | None = None
    elements: ElementDifferences | None = None
    first_index: tuple[int, ...] | None = None


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs, with its digests; None on a side without the file."""

    name: str
    a: str | None
    b: str | None


class CheckpointDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two checkpoints; `notes` describe the limits of the comparison.

    `by` is the key that matches tensors of both sides.
    """

    a: CheckpointRef
    b: CheckpointRef
    by: Literal["name", "path"]
    tensors: tuple[TensorChange, ...] = ()
    state: tuple[StateChange, ...] = ()
    files: tuple[FileChange, ...] = ()
    tensors_equal: int = 0
    bytes_unread: int = 0
    bytes_read: int = 0
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.tensors or self.state or self.files)


def compare(
    repo: Repository, a: CheckpointRef, b: CheckpointRef, bits: CompareBits | None, progress: Progress | None = None
) -> CheckpointDiff:
    """Compare two checkpoints. Without `bits`, name the tensors that differ and read none.

    Raises NotFound, CorruptObject, UnknownSchema.
    """
    digests = [repo.objects.get_record(checkpoint.digest, Checkpoint).content for checkpoint in (a, b)]
    old, new = (repo.objects.get_record(digest, Content) for digest in digests)
    by: Literal["name", "path"] = "path" if "deepspeed/1" in (old.format, new.format) else "name"
    if digests[0] == digests[1]:
        size = sum(layout(tensor).size_bytes for tensor in old.tensors)
        return CheckpointDiff(a=a, b=b, by=by, tensors_equal=len(old.tensors), bytes_unread=size)
    work = _Work(repo, bits, progress)
    tensors = tuple(work.tensors(_layouts(old), _layouts(new)))
    return CheckpointDiff(
        a=a,
        b=b,
        by=by,
        tensors=tensors,
        state=tuple(plain_state.changes(repo.objects, *_comparable(old, new))),
        files=tuple(_files(repo, old, new)),
        tensors_equal=work.equal,
        bytes_unread=work.unread,
        bytes_read=work.read,
        notes=tuple(_notes(old, new, bits is not None)),
    )


def _layouts(content: Content) -> dict[str, Layout]:
    return {tensor.name: layout(tensor) for tensor in content.tensors}


def _comparable(a: Content, b: Content) -> tuple[Content, Content]:
    """Return both contents. The state of ranks is left out if the numbers of ranks differ."""
    if a.world == b.world and a.format == b.format:
        return a, b
    left, right = (
        msgspec.structs.replace(content, ranks=(), blobs={} if content.format == "deepspeed/1" else content.blobs)
        for content in (a, b)
    )
    return left, right


def _notes(a: Content, b: Content, read: bool) -> Iterator[str]:
    if a.format != b.format:
        yield f"the formats are {a.format} and {b.format}: tensors have different names"
    if a.world != b.world:
        yield f"the numbers of ranks are {a.world} and {b.world}: the state of single ranks is not compared"
    if a.format == b.format == "deepspeed/1":
        yield "DeepSpeed's tensors are compared by file and path; its flat buffers are not the model's parameters"
    if not read:
        yield "the elements of tensors were not compared"


def _files(repo: Repository, a: Content, b: Content) -> Iterator[FileChange]:
    trees = [load_tree(repo.objects, side.tree).entries if side.tree is not None else () for side in (a, b)]
    old, new = ({entry.name: entry for entry in entries} for entries in trees)
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None or (before.digest, before.mode) != (after.digest, after.mode):
            yield FileChange(name=name, a=before.digest if before else None, b=after.digest if after else None)


class _Work:
    """One comparison. Each part is read once and counted."""

    def __init__(self, repo: Repository, bits: CompareBits | None, progress: Progress | None) -> None:
        self._parts = PartCache(repo.objects)
        self._bits = bits
        self._progress = progress
        self.equal = self.unread = self.read = 0

    def tensors(self, a: Mapping[str, Layout], b: Mapping[str, Layout]) -> Iterator[TensorChange]:
        """Yield the tensors that differ, in order of names."""
        names = sorted(a.keys() | b.keys())
        for number, name in enumerate(names):
            change = self._tensor(name, a.get(name), b.get(name))
            if change is None:
                self.equal += 1
            else:
                yield change
            if self._progress:
                self._progress("comparing tensors", number + 1, len(names))

    def _tensor(self, name: str, a: Layout | None, b: Layout | None) -> TensorChange | None:
        if a is None or b is None:
            return TensorChange(
                name=name, kind="only in b" if a is None else "only in a", a=_described(a), b=_described(b)
            )
        if a.dtype != b.dtype or a.shape != b.shape:
            return TensorChange(
                name=name, kind="type" if a.dtype != b.dtype else "shape", a=_described(a), b=_described(b)
            )
        left, right = TensorReader(self._parts, a), TensorReader(self._parts, b)
        ranges = list(self._unequal(left, right))
        if not ranges:
            return None
        elements = self._elements(left, right, ranges) if self._bits is not None else None
        if elements is not None and not elements.differing:
            return None
        first = _index(elements.first, a.shape) if elements is not None and elements.first is not None else None
        return TensorChange(
            name=name, kind="bits", a=_described(a), b=_described(b), elements=elements, first_index=first
        )

    def _unequal(self, a: TensorReader, b: TensorReader) -> Iterator[tuple[int, int]]:
        """Yield ranges of bytes that are not known to be equal."""
        edges = sorted({edge for reader in (a, b) for window in reader.windows() for edge in window})
        for start, end in itertools.pairwise(edges):
            known = a.digest(start, end)
            if known is not None and known == b.digest(start, end):
                self.unread += end - start
            else:
                yield start, end

    def _elements(self, a: TensorReader, b: TensorReader, ranges: Sequence[tuple[int, int]]) -> ElementDifferences:
        """Return the differences between two tensors. Elements in parts with equal digests count as compared."""
        jobs: list[Job[ElementDifferences]] = [
            # Memory: on each side a window, and the parts that it consists of.
            (4 * (end - start), partial(self._range, a, b, start, end))
            for start, end in ranges
        ]
        known = a.layout.elements - sum(end - start for start, end in ranges) // a.layout.item_bytes
        elements = ElementDifferences(compared=known)
        for part in bounded_map(jobs):
            elements += part
        self.read += sum(end - start for start, end in ranges)
        return elements

    def _range(self, a: TensorReader, b: TensorReader, start: int, end: int) -> ElementDifferences:
        old, new = a.read(start, end), b.read(start, end)
        item = a.layout.item_bytes
        if old == new or self._bits is None:
            return ElementDifferences(compared=(end - start) // item)
        return self._bits(old, new, a.layout.dtype, start // item)


def _described(tensor: Layout | None) -> str | None:
    return None if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))
