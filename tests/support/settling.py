"""Waiting for the file system's clock, which is what the index trusts."""

import time
from pathlib import Path

from m5ws.repository.index import settled, stamp


def settle(folder: Path) -> None:
    """Return once every file's last change is so old that the index remembers it."""
    files = [path for path in folder.rglob("*") if not path.is_dir() and ".git" not in path.parts]
    while not all(settled(stamp(path.lstat()), time.time_ns()) for path in files):
        time.sleep(0.001)
