"""The age of files. The index trusts a file older than a tick of the file system's clock, git one older than its index.

Times that can be set are set, not waited for. A ctime cannot be set. So tests wait for a tick of the file system's
clock, and, because git compares whole seconds, for the end of the second of the last change.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from m5ws.filesystem import stamp
from m5ws.repository.files.index import is_settled
from tests.support.workspace.checkouts import git

_DAY_NS = 86_400 * 10**9


def settle(folder: Path) -> None:
    """Return once every file's last change is old enough for the index."""
    files = [*_files(folder)]
    while not all(is_settled(stamp(path.lstat()), time.time_ns()) for path in files):
        time.sleep(0.001)


def age(folder: Path) -> None:
    """Make all files two days old, and git's index, which has their stamps, one day old; then settle.

    Now git trusts its stamps, and m5ws trusts git. Git misses a change of content with the old time and length within
    the second of the noted ctime. Call `end_second` before such a change.
    """
    now_ns = time.time_ns()
    for path in _files(folder):
        if ".m5ws" not in path.parts:
            os.utime(path, ns=(now_ns, now_ns - 2 * _DAY_NS), follow_symlinks=False)
    git(folder, "update-index", "-q", "--refresh")
    os.utime(folder / ".git" / "index", ns=(now_ns, now_ns - _DAY_NS))
    settle(folder)


def end_second(folders: Iterable[Path]) -> None:
    """Return once the second of the last change in these folders is over."""
    last_s = max(path.lstat().st_ctime_ns for folder in folders for path in _files(folder)) // 10**9
    while time.time_ns() // 10**9 <= last_s:
        time.sleep(0.001)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir() and ".git" not in path.parts)
