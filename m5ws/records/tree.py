"""Records of trees, packs and packings: files by path and content."""

import os
from typing import Literal

from m5ws.records.base import Count, Digest, ObjectBytes, Record


class Slice(Record, frozen=True, kw_only=True):
    """`size_bytes` bytes at `offset` of a stored object. `digest` is the digest of these bytes alone."""

    object: Digest
    offset: ObjectBytes
    size_bytes: ObjectBytes
    digest: Digest


class Entry(Record, frozen=True, kw_only=True):
    """One file of a tree. A symbolic link has its target in `link`, and no parts.

    `path` is relative, `/`-separated, in the file system's own bytes. `parts` joined are the content. A stored entry of
    a file below `Format.small_bytes` has none: a `Packing` has its location (`trees.located`).
    """

    path: bytes
    mode: Literal["file", "exec", "link"]
    size_bytes: Count
    digest: Digest
    parts: tuple[Slice, ...] = ()
    link: bytes | None = None

    @property
    def name(self) -> str:
        """The path as text for people. Undecodable bytes are escaped."""
        return self.path.decode("utf-8", "backslashreplace")


class Tree(Record, tag="tree/2", frozen=True, kw_only=True):
    """Files sorted by path. A pure function of paths, modes and contents, independent of history."""

    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


class Pack(Record, frozen=True, kw_only=True):
    """An object of joined small files: their digests (32 bytes each) and sizes, in the order of their bytes."""

    object: Digest
    files: bytes
    sizes_bytes: tuple[ObjectBytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def names(self) -> list[bytes]:
        """The digests of the files."""
        return [self.files[start : start + 32] for start in range(0, len(self.files), 32)]


class Packing(Record, tag="packing/1", frozen=True, kw_only=True):
    """Locations of small files, sorted by pack. Names files by content alone; depends on the packs in the store."""

    packs: tuple[Pack, ...]


def path_text(path: bytes) -> str:
    """Return a tree path as text for `os` functions (`os.fsdecode`)."""
    return os.fsdecode(path)
