"""Files that are pinned by content: the tokenizer and the data, with links followed.

A run reads content through links. So a model cache full of links, or a data folder on another disk, is pinned
completely. Files count also if git ignores them.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.repository.files.interface import SourceFile

_NEVER = frozenset((".git", ".m5ws"))


def below(root: Path, path: bytes) -> tuple[SourceFile, ...] | None:
    """Return the files at and below `path` of the workspace, sorted; None if `path` does not exist.

    A broken link is returned as a link. Raises M5Error for sockets, devices and pipes, and for cycles of links.
    """
    location = os.path.join(root, os.fsdecode(path))
    if not os.path.lexists(location):
        return None
    return tuple(sorted(_files(location, path, frozenset()), key=lambda file: file.path))


def _files(location: str, path: bytes, above: frozenset[tuple[int, int]]) -> Iterator[SourceFile]:
    """Yield the files at `location`. `above` are the folders that contain it, to detect a cycle of links."""
    try:
        status = os.stat(location)
    except FileNotFoundError:
        yield SourceFile(path=path, location=location)
        return
    if stat.S_ISREG(status.st_mode):
        yield SourceFile(path=path, location=os.path.realpath(location))
    elif stat.S_ISDIR(status.st_mode):
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise M5Error(f"{location} is a link to a folder that contains the link", hint="Remove that link.")
        yield from _folder(location, path, above | {identity})
    else:
        raise M5Error(
            f"{location} is neither a file nor a folder", hint="Move the path out of the paths that m5ws.toml pins."
        )


def _folder(location: str, path: bytes, above: frozenset[tuple[int, int]]) -> Iterator[SourceFile]:
    with os.scandir(location) as entries:
        for entry in entries:
            if entry.name in _NEVER:
                continue
            inner = path + b"/" + os.fsencode(entry.name)
            if entry.is_file(follow_symlinks=False):
                yield SourceFile(path=inner, location=entry.path)
            else:
                yield from _files(entry.path, inner, above)
