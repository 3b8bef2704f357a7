"""The files that an attempt is given: whether it left them alone, and what becomes of them afterwards."""

from contextlib import suppress
from pathlib import Path

from m5ws.repository.index import Stamp, stamp


def stamps(work: Path) -> dict[Path, Stamp]:
    """Return every file below `work`, with its stamp."""
    return {path: stamp(path.lstat()) for path in work.rglob("*") if not path.is_dir()}


def modified(work: Path, given: dict[Path, Stamp]) -> list[str]:
    """Return the inputs that were changed or removed, by their paths in the workspace."""
    return [str(path.relative_to(work)) for path, known in given.items() if not _is(path, known)]


def remove(work: Path, given: dict[Path, Stamp]) -> None:
    """Remove the inputs that are as they were, which the store has, and folders that are empty then.

    What the script wrote stays: nobody else may have it.
    """
    for path, known in given.items():
        if _is(path, known):
            with suppress(OSError):
                path.unlink()
    folders = {folder for path in given for folder in path.parents if folder.is_relative_to(work)}
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):  # something is left in it
            folder.rmdir()


def _is(path: Path, known: Stamp) -> bool:
    try:
        return stamp(path.lstat()) == known
    except FileNotFoundError:
        return False
