"""A directory that is there whole or not at all: it is filled under another name beside it, and renamed at the end."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m5ws.errors import UsageError


def check(target: Path) -> None:
    """Raise UsageError unless `target` is absent or an empty directory."""
    if target.is_symlink() or (target.exists() and not target.is_dir()) or (target.is_dir() and any(target.iterdir())):
        raise UsageError(f"{target} is not empty", hint="Name a folder that does not exist yet.")


@contextmanager
def filled(target: Path) -> Iterator[Path]:
    """Give a directory to fill that becomes `target`, durable, when all went well; otherwise nothing is left of it.

    Raises UsageError as `check`.
    """
    check(target)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename stays within a file system; one that is killed leaves it behind, named so.
    made = target.parent / f".{target.name}.unfinished-{os.urandom(4).hex()}"
    made.mkdir()
    try:
        yield made
        _sync(made)
        # An empty directory in its place is replaced by this; a full one that came meanwhile is not.
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _sync(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for path in (*(os.path.join(folder, name) for name in names), folder):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
