"""Files and folders that a run reads from places that no snapshot contains."""

from typing import Literal

import msgspec

from m5ws.records.base import Count, Digest, Record

READ, WRITTEN, HOST, MORE = "r", "w", "h", "m"
"""Kinds of notes (`launch.read_notes`): a file or folder that was read; a path that the run made; a host; a process has
more than its notes.
"""


class ReadPath(Record, frozen=True, kw_only=True):
    """A file or folder outside the known places of a run (`launch.known_places`), soon after its first read.

    `digest` is the BLAKE3 of a file's content, or of the names and sizes in a folder; None: not recorded. `size_bytes`
    of a folder is the sum of its files. `sampled`: the digest is of blocks of a large file. `pinned`: the snapshot has
    a file with the same content.
    """

    path: str
    kind: Literal["file", "folder"] = "file"
    size_bytes: Count = 0
    digest: Digest | None = None
    sampled: bool = False
    pinned: bool = False


class ReadList(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run read outside known places, by path, as it was at the first read. `more`: and other files."""

    paths: dict[str, ReadPath] = {}
    hosts: tuple[str, ...] = ()
    more: bool = False

    @property
    def unpinned(self) -> tuple[ReadPath, ...]:
        """The files without equal content in the snapshot, and the folders, by path."""
        return tuple(read for _, read in sorted(self.paths.items()) if not read.pinned)
