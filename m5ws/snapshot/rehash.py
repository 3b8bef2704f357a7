"""Rehash of the files that a snapshot would take for unchanged. Detects changes that did not change a file's stamp.

Reads only. Files with a changed stamp are skipped, because the next snapshot reads them anyway.
"""

import os
from pathlib import Path

import msgspec

from m5ws.filesystem import Stamp, stamp
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.tree import Slice
from m5ws.repository.files.index import Index
from m5ws.repository.objects import Objects


class RehashResult(msgspec.Struct, frozen=True, kw_only=True):
    """Number of `files` that were read, and paths of the `stale` ones, whose content differs from the index."""

    files: int = 0
    size_bytes: int = 0
    stale: tuple[str, ...] = ()


def read(objects: Objects, index_path: Path, progress: Progress | None = None) -> RehashResult:
    """Read each file in the index at `index_path` that still has its recorded stamp."""
    files, size_bytes, stale = 0, 0, list[str]()
    with Index(index_path) as index:
        remembered = sorted(index.remembered(), key=lambda known: known[0])
    for position, (location, seen, known) in enumerate(remembered):
        if progress:
            progress("reading the workspace", position, len(remembered))
        same = _is_same(objects, location, seen, known)
        if same is None:
            continue
        files, size_bytes = files + 1, size_bytes + seen[0]
        if not same:
            stale.append(location.decode("utf-8", "backslashreplace"))
    return RehashResult(files=files, size_bytes=size_bytes, stale=tuple(stale))


def _is_same(objects: Objects, location: bytes, seen: Stamp, known: Digest | tuple[Slice, ...]) -> bool | None:
    """Return True if a file has the recorded content, None if its stamp has changed or it cannot be read."""
    try:
        with open(location, "rb") as file:
            if stamp(os.fstat(file.fileno())) != seen:
                return None
            if isinstance(known, tuple):
                same = all(objects.digest(file.read(part.size_bytes)) == part.digest for part in known)
            else:
                same = objects.digest(file.read()) == known
            # A change during the read changes the stamp, so the file does not count as stale.
            return same if stamp(os.fstat(file.fileno())) == seen else None
    except OSError:
        return None
