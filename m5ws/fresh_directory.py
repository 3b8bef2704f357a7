"""A directory that appears complete or not at all. It is filled under a temporary name beside it, then renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m5ws.errors import UsageError


def check(target: Path) -> None:
    """Raise UsageError unless `target` is absent or an empty directory."""
    if target.is_symlink() or (target.exists() and not target.is_dir()) or (target.is_dir() and any(target.iterdir())):
        raise UsageError(f"{target} is not empty", hint="Choose a directory that does not exist yet.")


@contextmanager
def create(target: Path) -> Iterator[Path]:
    """Yield a directory to fill, which becomes `target`, durably, after the block. After an error nothing remains.

    Raises UsageError as `check` does.
    """
    check(target)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename stays within one file system. A killed process leaves it behind under this name.
    made = target.parent / f".{target.name}.unfinished-{os.urandom(4).hex()}"
    made.mkdir()
    try:
        yield made
        _sync(made)
        # This replaces an empty directory, and fails if `target` has been filled meanwhile.
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
