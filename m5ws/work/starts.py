"""The lock of starts on a machine: one run at a time writes its input files.

Free space is checked before the first byte. Without the lock, two runs could count on the same space.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m5ws import locks
from m5ws.progress import Progress, report

_QUIET_S = 1.0
_NAME = "starting"


@contextmanager
def lock_starts(root: Path, progress: Progress | None) -> Iterator[None]:
    """Wait for other runs that write input files, and have the same folder `root`. They wait afterwards."""
    descriptor = os.open(root / _NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            if not locks.acquire(descriptor, _QUIET_S):
                report(progress, "waiting for the input files of another run")
                locks.acquire(descriptor, math.inf)
        yield
    finally:
        locks.release(descriptor)
