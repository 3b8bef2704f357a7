"""Files that a snapshot would take for unchanged, read again: a change that left no trace in their stamps is found.

Reads only. What a file of other stamps holds is nobody's concern: the next snapshot reads it anyway.
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


class Rehashed(msgspec.Struct, frozen=True, kw_only=True):
    """How many `files` were read; the paths of those that are `stale`: their content is not the remembered one."""

    files: int = 0
    size_bytes: int = 0
    stale: tuple[str, ...] = ()


def read(objects: Objects, index_path: Path, progress: Progress | None = None) -> Rehashed:
    """Read each file that the index in `index_path` knows, and that has the stamps it is known by."""
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
    return Rehashed(files=files, size_bytes=size_bytes, stale=tuple(stale))


def _is_same(objects: Objects, location: bytes, seen: Stamp, known: Digest | tuple[Slice, ...]) -> bool | None:
    """Return True if a file has the content it is known by, None if its stamps are others, or it cannot be read."""
    try:
        with open(location, "rb") as file:
            if stamp(os.fstat(file.fileno())) != seen:
                return None
            if isinstance(known, tuple):
                same = all(objects.digest(file.read(part.size_bytes)) == part.digest for part in known)
            else:
                same = objects.digest(file.read()) == known
            # A change that leaves a trace, at this moment, is none of the others.
            return same if stamp(os.fstat(file.fileno())) == seen else None
    except OSError:
        return None
