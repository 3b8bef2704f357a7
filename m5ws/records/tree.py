"""Records of trees and packs: files by path and content."""

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
    a file below `Format.small_bytes` has none: it is in a pack of its tree (`trees.load`).
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


class Pack(Record, frozen=True, kw_only=True):
    """An object of joined small files: the next `files` of a tree's small files that have different contents."""

    object: Digest
    files: Count


class Tree(Record, tag="tree/3", frozen=True, kw_only=True):
    """Files sorted by path. A pure function of paths, modes and contents, independent of history.

    `packs` have the small files in the order of their paths, each content once.
    """

    entries: tuple[Entry, ...]
    packs: tuple[Pack, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def path_text(path: bytes) -> str:
    """Return a tree path as text for `os` functions (`os.fsdecode`)."""
    return os.fsdecode(path)
