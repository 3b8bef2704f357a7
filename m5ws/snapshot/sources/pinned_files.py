"""Files that are pinned by content: the tokenizer and the data, wherever links say that they lie.

Links are followed, since what a run reads is content; so a model cache full of links, or a data folder on
another disk, is pinned whole. What git thinks of these files does not count.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.repository.files.interface import SourceFile

_NEVER = frozenset((".git", ".m5ws"))


def below(root: Path, path: bytes) -> tuple[SourceFile, ...] | None:
    """Return the files at and below `path` of the workspace, sorted; None if there is nothing.

    A link to nothing is returned as the link that it is. Raises M5Error for what is neither file, folder nor link.
    """
    location = os.path.join(root, os.fsdecode(path))
    if not os.path.lexists(location):
        return None
    return tuple(sorted(_files(location, path, frozenset()), key=lambda file: file.path))


def _files(location: str, path: bytes, above: frozenset[tuple[int, int]]) -> Iterator[SourceFile]:
    """Yield what is at `location`. `above` are the folders on the way here: a link back to one has no end."""
    try:
        found = os.stat(location)
    except FileNotFoundError:
        yield SourceFile(path=path, location=location)
        return
    if stat.S_ISREG(found.st_mode):
        yield SourceFile(path=path, location=os.path.realpath(location))
    elif stat.S_ISDIR(found.st_mode):
        here = (found.st_dev, found.st_ino)
        if here in above:
            raise M5Error(f"{location} leads back to a folder that it lies in", hint="Remove that link.")
        yield from _folder(location, path, above | {here})
    else:
        raise M5Error(f"{location} is neither a file nor a folder", hint="Move it out of what m5ws.toml pins.")


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
