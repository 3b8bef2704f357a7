"""The age of files. The index trusts a file older than a tick of the file system's clock. A ctime cannot be set."""

import time
from collections.abc import Iterator
from pathlib import Path

from m5ws.filesystem import stamp
from m5ws.repository.files.index import is_settled


def settle(folder: Path) -> None:
    """Return once every file's last change is old enough for the index."""
    files = [*_files(folder)]
    while not all(is_settled(stamp(path.lstat()), time.time_ns()) for path in files):
        time.sleep(0.001)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir() and ".git" not in path.parts)
