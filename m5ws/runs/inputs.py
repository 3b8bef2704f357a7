"""The input files of an attempt: detection of changes, and removal after the attempt."""

import os
from contextlib import suppress
from pathlib import Path

from m5ws.filesystem import Stamp, stamp


def stamps(work: Path) -> dict[Path, Stamp]:
    """Return every file below `work`, with its stamp."""
    return {path: stamp(path.lstat()) for path in work.rglob("*") if not path.is_dir()}


def untouched(work: Path, given: dict[Path, Stamp]) -> set[Path]:
    """Return the unchanged inputs."""
    return {path for path, known in given.items() if _is(work, path, known)}


def modified(work: Path, given: dict[Path, Stamp]) -> list[str]:
    """Return the inputs that were changed or removed, by their paths in the workspace."""
    changed = (path.relative_to(work) for path, known in given.items() if not _is(work, path, known))
    return [os.fsencode(path).decode("utf-8", "backslashreplace") for path in changed]


def remove(work: Path, given: dict[Path, Stamp]) -> None:
    """Remove unchanged inputs, which the store has, and folders that are then empty. Files of the script stay."""
    for path, known in given.items():
        if _is(work, path, known):
            with suppress(OSError):
                path.unlink()
    folders = {folder for path in given for folder in path.parents if folder.is_relative_to(work)}
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):  # something is left in it
            folder.rmdir()


def _is(work: Path, path: Path, known: Stamp) -> bool:
    """Return True if an input is unchanged and in its own place, not behind a link that the script made of a folder."""
    try:
        return stamp(path.lstat()) == known and path.parent.resolve() == work.resolve() / path.parent.relative_to(work)
    except OSError:
        return False
