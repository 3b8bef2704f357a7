"""Local index of file contents by stamp, so that an unchanged file costs one `lstat`.

The index is disposable: losing it costs time, never correctness. As in git's index, a file is not recorded if its times
are too close to the time of reading: a change within the same tick of the clock would be invisible.
"""

import hashlib
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
_PACKS = 2**14
"""Number of recorded packs."""


def is_settled(seen: Stamp, read_ns: int) -> bool:
    """Return True if a change after `read_ns`, the start of reading, would show in a file's stamp.

    Linux stamps files at its tick of at most 10 ms. A ctime of whole milliseconds may come from a coarser file system,
    such as FAT with two seconds.
    """
    tick_ns = _FINE_NS if seen[2] % 1_000_000 else _COARSE_NS
    return max(seen[1], seen[2]) < read_ns - tick_ns


FileContent = Digest | tuple[Slice, ...]
"""The digest of a small file, or the chunks of a large file."""


class Written(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tree that is durable (or would be, after a dry run): its digest, its size, and the size of new objects.

    `unchanged`: it was written before.
    """

    digest: Digest
    files: int
    size_bytes: int
    new_bytes: int = 0
    unchanged: bool = False


class KnownTree(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tree written from files with certain stamps, and every object it needs with its length.

    `passed` has the names of checks that the files have passed.
    """

    tree: Written
    objects: tuple[tuple[Digest, int], ...]
    passed: tuple[str, ...] = ()


class _Content(msgspec.Struct, array_like=True):
    version: Literal[8] = 8
    trees: dict[Digest, KnownTree] = {}
    marks: dict[str, set[str]] = {}
    files: dict[bytes, tuple[Stamp, FileContent]] = {}
    packs: dict[bytes, bytes] = {}


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
            # Keep all trees used now, and the newest of the other trees.
            older = [(name, tree) for name, tree in self._old_trees.items() if name not in self._content.trees]
            room = max(0, _TREES - len(self._content.trees))
            self._content.trees = dict(older[max(0, len(older) - room) :]) | self._content.trees
            # The disk may be full, and the store elsewhere.
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._path, msgspec.msgpack.encode(self._content))

    def file(self, location: bytes, now: Stamp) -> FileContent | None:
        """Return the content of an unchanged file, or None."""
        known = self._content.files.get(location)
        return known[1] if known is not None and known[0] == now else None

    def remember_file(self, location: bytes, seen: Stamp, content: FileContent, read_ns: int) -> None:
        """Record the content of a file, unless a change at the same time could stay hidden."""
        if is_settled(seen, read_ns):
            self._content.files[location] = (seen, content)
            self._dirty = True

    def pack(self, files: bytes) -> Digest | None:
        """Return the pack of `files`, which are digests joined in the order of the pack, or None."""
        known = self._content.packs.get(_short(files))
        return known.hex() if known is not None else None

    def remember_pack(self, files: bytes, pack: Digest) -> None:
        """Record the pack of files."""
        name = _short(files)
        if self._content.packs.pop(name, None) != bytes.fromhex(pack):
            self._dirty = True
        # The newest are last.
        self._content.packs[name] = bytes.fromhex(pack)
        while len(self._content.packs) > _PACKS:
            del self._content.packs[next(iter(self._content.packs))]

    def tree(self, signature: Digest) -> KnownTree | None:
        """Return the tree written from files with this signature, or None."""
        if (known := self._old_trees.get(signature)) is not None:
            self._content.trees.setdefault(signature, known)
        return self._content.trees.get(signature)

    def remember_tree(self, signature: Digest, tree: KnownTree) -> None:
        self._content.trees[signature] = tree
        self._dirty = True

    def pass_tree(self, signature: Digest, check: str) -> None:
        """Record that the files of a recorded tree have passed a check. Does nothing for another tree."""
        if (known := self.tree(signature)) is not None and check not in known.passed:
            self.remember_tree(signature, msgspec.structs.replace(known, passed=(*known.passed, check)))

    def marks(self, kind: str) -> frozenset[str]:
        """Return the strings recorded under `kind`."""
        return frozenset(self._content.marks.get(kind, ()))

    def remember_marks(self, kind: str, marks: set[str]) -> None:
        """Replace the strings recorded under `kind`."""
        if self.marks(kind) != marks:
            self._content.marks[kind] = set(marks)
            self._dirty = True


def _short(files: bytes) -> bytes:
    return hashlib.blake2b(files, digest_size=32).digest()
