"""Records of trees, packs and packings: files by path and content."""

import os
from typing import Literal

from m5ws.records.base import Count, Digest, ObjectBytes, Record


class Slice(Record, frozen=True, kw_only=True):
    """`size_bytes` bytes at `offset` of a stored object; `digest` is of these bytes alone."""

    object: Digest
    offset: ObjectBytes
    size_bytes: ObjectBytes
    digest: Digest


class Entry(Record, frozen=True, kw_only=True):
    """One file of a tree. A symbolic link holds its target in `link` and no parts.

    `path` is relative, `/`-separated, in the file system's own bytes. `parts` joined are the content; as it is stored,
    a file below `Format.small_bytes` has none: a `Packing` says where it lies (`trees.located`).
    """

    path: bytes
    mode: Literal["file", "exec", "link"]
    size_bytes: Count
    digest: Digest
    parts: tuple[Slice, ...] = ()
    link: bytes | None = None

    @property
    def name(self) -> str:
        """The path as text for people; undecodable bytes are escaped."""
        return self.path.decode("utf-8", "backslashreplace")


class Tree(Record, tag="tree/2", frozen=True, kw_only=True):
    """Files sorted by path. A pure function of paths, modes and contents: no history is in it."""

    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


class Pack(Record, frozen=True, kw_only=True):
    """An object that is small files joined: their digests (32 bytes each) and sizes, in the order of their bytes."""

    object: Digest
    files: bytes
    sizes_bytes: tuple[ObjectBytes, ...]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def names(self) -> list[bytes]:
        """The digests of its files."""
        return [self.files[start : start + 32] for start in range(0, len(self.files), 32)]


class Packing(Record, tag="packing/1", frozen=True, kw_only=True):
    """Where small files lie, sorted by pack. It names files by content alone, and depends on what the store had."""

    packs: tuple[Pack, ...]


def path_text(path: bytes) -> str:
    """Return a tree path as the file system's own text (`os.fsdecode`), for use with `os` functions."""
    return os.fsdecode(path)
