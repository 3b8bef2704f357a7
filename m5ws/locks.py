"""Locks between processes on open files.

The kernel releases a lock when the last descriptor closes, also after a kill.
"""

import fcntl
import math
import os
import time
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.02


def acquire(descriptor: int, wait_s: float = 0.0) -> bool:
    """Lock an open file. Return False if another process still holds the lock after `wait_s` seconds.

    With `math.inf` the kernel waits. Raises OSError if the file system has no locks.
    """
    if math.isinf(wait_s):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def share(descriptor: int) -> None:
    """Lock an open file together with others that share the lock. Waits for an exclusive lock. Raises OSError."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def release(descriptor: int) -> None:
    """Unlock and close a file. To close it is not enough: a child that was forked meanwhile has the same open file.

    A script may fork loaders, which live long, while a checkpoint is saved.
    """
    with suppress(OSError):  # Some file systems have no locks.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return True if a process holds the lock on a file."""
    try:
        with open(path) as file:
            return not acquire(file.fileno())
    except FileNotFoundError:
        return False


def list_processes(path: Path) -> list[int]:
    """Return the other processes of this machine that have a file open, if the kernel lists them."""
    file, pids = os.path.realpath(path), []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # It has ended, or belongs to another user.
            if any(os.readlink(descriptor) == file for descriptor in folder.iterdir()):
                pids.append(int(folder.parent.name))
    return sorted(pid for pid in pids if pid != os.getpid())
