"""What files held when they were last read, so that an unchanged file costs one `lstat`.

Local and disposable: losing it costs time, never correctness. As in git's index, a file whose time stamps
lie too close to the moment it was read is not remembered, since a change within the same tick of the
file system's clock would be invisible. Nor is one that a process has mapped to write to (`mappings`).
"""

from collections.abc import Iterator
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
"""So many files' places are remembered beside those of the newest tree: some tens of milliseconds to read."""


def settled(seen: Stamp, read_ns: int) -> bool:
    """Return whether a change after `read_ns`, when reading began, would show in a file's stamp.

    Linux stamps files at its tick, of at most 10 ms; a ctime of whole milliseconds may be a coarser file system's,
    such as FAT's two seconds.
    """
    tick_ns = _FINE_NS if seen[2] % 1_000_000 else _COARSE_NS
    return max(seen[1], seen[2]) < read_ns - tick_ns


PackFiles = tuple[bytes, tuple[int, ...]]
"""The digests of a pack's files, joined, and their sizes in bytes."""


class KnownTree(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tree that was written from files with these stamps, and every object it needs with its length."""

    digest: Digest
    packing: Digest | None
    files: int
    size_bytes: int
    objects: tuple[tuple[Digest, int], ...]


class _Files(msgspec.Struct, array_like=True):
    """What is known of each file: of no use to an unchanged workspace, and by far the most of an index."""

    files: dict[bytes, tuple[Stamp, Digest]] = {}
    chunks: dict[bytes, tuple[Stamp, tuple[Slice, ...]]] = {}
    packs: dict[Digest, PackFiles] = {}


class _Content(msgspec.Struct, array_like=True):
    version: Literal[5] = 5
    trees: dict[Digest, KnownTree] = {}
    marks: dict[str, msgspec.Raw] = {}
    notes: dict[str, bytes] = {}
    files: msgspec.Raw = msgspec.Raw()


class Index:
    """Context manager; what was learnt is saved, atomically, when it is left without an error.

    `marks` are sets of remembered strings for other users (for example digests already scanned), a `note` is whatever
    one of them encoded. Files and marks are decoded when they are first asked for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = _Content()
        self._old_trees: dict[Digest, KnownTree] = {}
        self._marks: dict[str, set[str]] = {}
        self._known: _Files | None = None

    def __enter__(self) -> "Index":
        try:
            self._content = msgspec.msgpack.decode(self._path.read_bytes(), type=_Content)
        except (FileNotFoundError, *codec.UNREADABLE):
            self._content = _Content(trees={}, marks={}, notes={})
        self._old_trees, self._content.trees = self._content.trees, {}
        self._marks, self._known = {}, None
        self._dirty = False
        return self

    @property
    def _files(self) -> _Files:
        if self._known is None:
            try:
                self._known = msgspec.msgpack.decode(self._content.files, type=_Files)
            except codec.UNREADABLE:
                self._known = _Files(files={}, chunks={}, packs={})
        return self._known

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._dirty:
            # All that were of use now, and the newest of the others.
            older = [(name, tree) for name, tree in self._old_trees.items() if name not in self._content.trees]
            room = max(0, _TREES - len(self._content.trees))
            self._content.trees = dict(older[max(0, len(older) - room) :]) | self._content.trees
            for name, marks in self._marks.items():
                self._content.marks[name] = msgspec.Raw(msgspec.msgpack.encode(marks))
            if self._known is not None or not bytes(self._content.files):
                self._content.files = msgspec.Raw(msgspec.msgpack.encode(self._files))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, msgspec.msgpack.encode(self._content))

    def file(self, location: bytes, now: Stamp) -> Digest | None:
        """Return the digest of an unchanged file, or None."""
        known = self._files.files.get(location)
        return known[1] if known is not None and known[0] == now else None

    def remember_file(self, location: bytes, seen: Stamp, digest: Digest, read_ns: int) -> None:
        """Remember what a file held, unless it changed so lately that another change could hide."""
        if settled(seen, read_ns):
            self._files.files[location] = (seen, digest)
            self._dirty = True

    def chunks(self, location: bytes, now: Stamp) -> tuple[Slice, ...] | None:
        """Return the chunks of an unchanged large file, or None."""
        known = self._files.chunks.get(location)
        return known[1] if known is not None and known[0] == now else None

    def remember_chunks(self, location: bytes, seen: Stamp, chunks: tuple[Slice, ...], read_ns: int) -> None:
        """As `remember_file`, for a file that is cut into chunks."""
        if settled(seen, read_ns):
            self._files.chunks[location] = (seen, chunks)
            self._dirty = True

    def remembered(self) -> Iterator[tuple[bytes, Stamp, Digest | tuple[Slice, ...]]]:
        """Yield each remembered file: its location, its stamp, and its digest or, of a large one, its chunks."""
        yield from ((location, *known) for location, known in self._files.files.items())
        yield from ((location, *known) for location, known in self._files.chunks.items())

    def packs(self) -> dict[Digest, PackFiles]:
        """Return what each pack that is remembered holds."""
        return self._files.packs

    def remember_packs(self, packs: dict[Digest, PackFiles]) -> None:
        """Remember what `packs` hold, and of other packs those that were used most lately."""
        room, others = _PACKED_FILES, list[tuple[Digest, PackFiles]]()
        for digest, found in reversed(self._files.packs.items()):
            if digest not in packs and (room := room - len(found[1])) >= 0:
                others.append((digest, found))
        kept = dict(reversed(others)) | packs
        if list(kept) != list(self._files.packs):
            self._files.packs = kept
            self._dirty = True

    def tree(self, signature: Digest) -> KnownTree | None:
        """Return the tree written from files with this signature, or None."""
        if (found := self._old_trees.get(signature)) is not None:
            self._content.trees.setdefault(signature, found)
        return self._content.trees.get(signature)

    def remember_tree(self, signature: Digest, tree: KnownTree) -> None:
        self._content.trees[signature] = tree
        self._dirty = True

    def marks(self, kind: str) -> frozenset[str]:
        """Return the strings remembered under `kind`."""
        if kind not in self._marks:
            self._marks[kind] = _decoded(self._content.marks.get(kind))
        return frozenset(self._marks[kind])

    def remember_marks(self, kind: str, marks: set[str]) -> None:
        """Replace the strings remembered under `kind`."""
        if self.marks(kind) != marks:
            self._marks[kind] = set(marks)
            self._dirty = True

    def note(self, kind: str) -> bytes:
        """Return what is remembered under `kind`, or nothing."""
        return self._content.notes.get(kind, b"")

    def remember_note(self, kind: str, note: bytes) -> None:
        """Replace what is remembered under `kind`."""
        if self.note(kind) != note:
            self._content.notes[kind] = note
            self._dirty = True


def _decoded(marks: msgspec.Raw | None) -> set[str]:
    try:
        return msgspec.msgpack.decode(marks, type=set[str]) if marks is not None else set()
    except codec.UNREADABLE:
        return set()
