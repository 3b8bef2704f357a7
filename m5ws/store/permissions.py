"""Permissions in a directory store or a cache: all of it takes mode and group of its root, whatever the umask is.

So the folder of a team stays open for its group, and a user's own folder stays closed. A folder appears under its name
with its permissions, also if its process is killed.
"""

import math
import os
import stat
from contextlib import suppress
from pathlib import Path

from m5ws import access, locks

_READ, _WRITE = 0o444, 0o222


def make_folder(root: Path, folder: Path) -> None:
    """Create a folder below an existing root; do nothing if it exists."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            # Otherwise the rename of one process may replace the folder in which another is about to create a file.
            locks.acquire(descriptor, math.inf)
        if not folder.is_dir():
            _make(folder, os.fstat(descriptor))
    finally:
        with suppress(OSError):
            # A script may fork loaders, which live long, while a checkpoint is saved.
            locks.release(descriptor)
        os.close(descriptor)


def _make(folder: Path, root: os.stat_result) -> None:
    made = folder.with_name(f".{os.urandom(12).hex()}")
    made.mkdir()
    try:
        _take_group(made, root)
        made.chmod(stat.S_IMODE(root.st_mode))
        # A link or a file under this name stays, and is an error.
        made.rename(folder)
    except OSError:
        made.rmdir()
        if not folder.is_dir():
            raise


def set_mode(root: Path, descriptor: int, *, writable: bool = False) -> None:
    """Set the permissions of a new file: for each class of users that can read the root, and write if `writable`."""
    status = root.stat()
    _take_group(descriptor, status)
    os.fchmod(descriptor, status.st_mode & (_READ | (_WRITE if writable else 0)))


def describe(root: Path) -> str:
    """Return a folder with its users for messages: its group if members may write, otherwise its owner."""
    try:
        status = root.stat()
    except OSError:
        return str(root)
    if status.st_mode & stat.S_IWGRP:
        return f"{root} of group {access.group_name(status.st_gid)}"
    return f"{root} of user {access.user_name(status.st_uid)}"


def _take_group(made: Path | int, root: os.stat_result) -> None:
    """Give a file or folder the root's group, unless the group has no more access than all users have."""
    is_needed = (root.st_mode >> 3 ^ root.st_mode) & 0o7
    if is_needed and os.stat(made).st_gid != root.st_gid:
        os.chown(made, -1, root.st_gid)
