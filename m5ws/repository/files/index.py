"""Local index of file contents by stamp, so that an unchanged file costs one `lstat`.

The index is disposable: losing it costs time, never correctness. As in git's index, a file is not recorded if its times
are too close to the time of reading: a change within the same tick of the clock would be invisible. A file that a
process has mapped writable is not recorded either (`mappings`).
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from m5ws.filesystem import Stamp, write_atomically
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.tree import Slice

_FINE_NS = 20_000_000
_COARSE_NS = 2_000_000_000
_TREES = 64
_PACKED_FILES = 2**18
"""Number of files whose packs are recorded besides those of the newest tree; they take tens of milliseconds to read."""


def is_settled(seen: Stamp, read_ns: int) -> bool:
    """Return True if a change after `read_ns`, the start of reading, would show in a file's stamp.

    Linux stamps files at its tick of at most 10 ms. A ctime of whole milliseconds may come from a coarser file system,
    such as FAT with two seconds.
    """
    tick_ns = _FINE_NS if seen[2] % 1_000_000 else _COARSE_NS
    return max(seen[1], seen[2]) < read_ns - tick_ns


PackFiles = tuple[bytes, tuple[int, ...]]
"""The digests of a pack's files, concatenated, and their sizes in bytes."""


class Written(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tree that is durable (or would be, after a dry run): its digest, its size, and the size of new objects.

    `packing` is the packing of its small files; None if it has none. `unchanged`: it was written before.
    """

    digest: Digest
    packing: Digest | None
    files: int
    size_bytes: int
    new_bytes: int = 0
    unchanged: bool = False


class KnownTree(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tree written from files with certain stamps, and every object it needs with its length."""

    tree: Written
    objects: tuple[tuple[Digest, int], ...]


class _Content(msgspec.Struct, array_like=True):
    version: Literal[7] = 7
    trees: dict[Digest, KnownTree] = {}
    marks: dict[str, set[str]] = {}
    files: dict[bytes, tuple[Stamp, Digest]] = {}
    chunks: dict[bytes, tuple[Stamp, tuple[Slice, ...]]] = {}
    packs: dict[Digest, PackFiles] = {}


class Index:
    """Context manager that saves additions atomically when it exits without an error, if it can.

    `marks` are sets of strings for other modules, for example digests already scanned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = _Content()
        self._old_trees: dict[Digest, KnownTree] = {}

    def __enter__(self) -> "Index":
        try:
            self._content = msgspec.msgpack.decode(self._path.read_bytes(), type=_Content)
        except (FileNotFoundError, *codec.UNREADABLE):
            self._content = _Content()
        self._old_trees, self._content.trees = self._content.trees, {}
        self._dirty = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._dirty:
            # Keep all trees used now, and the newest of the others.
            older = [(name, tree) for name, tree in self._old_trees.items() if name not in self._content.trees]
            room = max(0, _TREES - len(self._content.trees))
            self._content.trees = dict(older[max(0, len(older) - room) :]) | self._content.trees
            # The disk may be full, and the store elsewhere.
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, msgspec.msgpack.encode(self._content))

    def file(self, location: bytes, now: Stamp) -> Digest | None:
        """Return the digest of an unchanged file, or None."""
        known = self._content.files.get(location)
        return known[1] if known is not None and known[0] == now else None

    def remember_file(self, location: bytes, seen: Stamp, digest: Digest, read_ns: int) -> None:
        """Record the digest of a file, unless a change at the same time could stay hidden."""
        if is_settled(seen, read_ns):
            self._content.files[location] = (seen, digest)
            self._dirty = True

    def chunks(self, location: bytes, now: Stamp) -> tuple[Slice, ...] | None:
        """Return the chunks of an unchanged large file, or None."""
        known = self._content.chunks.get(location)
        return known[1] if known is not None and known[0] == now else None

    def remember_chunks(self, location: bytes, seen: Stamp, chunks: tuple[Slice, ...], read_ns: int) -> None:
        """As `remember_file`, for a file split into chunks."""
        if is_settled(seen, read_ns):
            self._content.chunks[location] = (seen, chunks)
            self._dirty = True

    def remembered(self) -> Iterator[tuple[bytes, Stamp, Digest | tuple[Slice, ...]]]:
        """Yield each recorded file: location, stamp, and its digest or, for a large file, its chunks."""
        yield from ((location, *known) for location, known in self._content.files.items())
        yield from ((location, *known) for location, known in self._content.chunks.items())

    def packs(self) -> dict[Digest, PackFiles]:
        """Return the content of each recorded pack."""
        return self._content.packs

    def remember_packs(self, packs: dict[Digest, PackFiles]) -> None:
        """Record the content of `packs`, and keep the most recently used other packs."""
        room, others = _PACKED_FILES, list[tuple[Digest, PackFiles]]()
        for digest, content in reversed(self._content.packs.items()):
            if digest not in packs and (room := room - len(content[1])) >= 0:
                others.append((digest, content))
        kept = dict(reversed(others)) | packs
        if list(kept) != list(self._content.packs):
            self._content.packs = kept
            self._dirty = True

    def tree(self, signature: Digest) -> KnownTree | None:
        """Return the tree written from files with this signature, or None."""
        if (known := self._old_trees.get(signature)) is not None:
            self._content.trees.setdefault(signature, known)
        return self._content.trees.get(signature)

    def remember_tree(self, signature: Digest, tree: KnownTree) -> None:
        self._content.trees[signature] = tree
        self._dirty = True

    def marks(self, kind: str) -> frozenset[str]:
        """Return the strings recorded under `kind`."""
        return frozenset(self._content.marks.get(kind, ()))

    def remember_marks(self, kind: str, marks: set[str]) -> None:
        """Replace the strings recorded under `kind`."""
        if self.marks(kind) != marks:
            self._content.marks[kind] = set(marks)
            self._dirty = True
