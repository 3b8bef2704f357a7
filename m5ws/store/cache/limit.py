"""How much a cache's directory holds, and what leaves it first.

One number in a file, `usage`, is all that the processes of a node share: it is raised before an entry appears
and set right by the next trim, which alone looks at every entry. So it is never less than what is there, whoever
was killed when (but for what is being filled during a trim), and a fill costs a lock and eight bytes.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from m5ws import locks
from m5ws.store.local import LocalStore

_OBJECTS = "objects/"
_SPARE = 16
"""A trim leaves one part in so many free, so that trims are rare."""


class Room:
    """The size limit of a cache directory, shared by all processes that use it."""

    def __init__(self, entries: LocalStore, limit_bytes: int) -> None:
        self._entries = entries
        self.limit_bytes = limit_bytes
        self.capacity_bytes = limit_bytes - limit_bytes // _SPARE

    def prepare(self) -> None:
        """Make the directory, for nobody else to read. Raises OSError."""
        os.close(open_private(self._entries.root, "usage"))

    def take(self, size_bytes: int) -> None:
        """Account for an entry that is about to appear, and drop others where the limit is passed. Raises OSError."""
        with self._usage() as descriptor:
            # Without an account, a cache counts as full: the trim that follows finds out.
            known = _number(descriptor)
            total = size_bytes + (self.limit_bytes if known is None else known)
            _set_number(descriptor, total)
        if total > self.limit_bytes:
            # Far above it, whoever fills waits for the process that makes room, or filling would outrun it.
            self.trim(size_bytes, wait=total > self.limit_bytes + self.limit_bytes // 4)

    def trim(self, wanted_bytes: int, at_least_bytes: int = 0, *, wait: bool = False) -> None:
        """Drop what was used least lately, until `wanted_bytes` more fit; at least so much as is said.

        Does nothing while another process does it, or does it after that one if it is to `wait`. Raises OSError.
        """
        with self._locked("trim", math.inf if wait else 0.0) as trimming:
            if trimming is None:
                return
            with self._usage() as descriptor:
                before = _number(descriptor) or 0
            entries = sorted(self._entries.list(_OBJECTS), key=lambda entry: entry.modified_s)
            total = sum(entry.size_bytes for entry in entries)
            goal = min(self.capacity_bytes - wanted_bytes, total - at_least_bytes)
            for entry in entries:
                if total <= goal:
                    break
                # Whoever reads it goes on reading: the bytes leave with the last descriptor.
                self._entries.delete(entry.key)
                total -= entry.size_bytes
            with self._usage() as descriptor:
                filled = max(0, (_number(descriptor) or 0) - before)
                _set_number(descriptor, total + wanted_bytes + filled)

    @contextmanager
    def _usage(self) -> Iterator[int]:
        with self._locked("usage", math.inf) as descriptor:
            assert descriptor is not None
            yield descriptor

    @contextmanager
    def _locked(self, name: str, wait_s: float) -> Iterator[int | None]:
        """Hold a lock that the kernel takes back from a process that is killed; None where it is another's."""
        descriptor = open_private(self._entries.root, name)
        try:
            yield descriptor if locks.acquire(descriptor, wait_s) else None
        finally:
            os.close(descriptor)


def open_private(root: Path, name: str) -> int:
    """Open a file of a cache's own; the cache is made where it is not there, for nobody else to read."""
    path, flags = root / name, os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        return os.open(path, flags, 0o600)


def _number(descriptor: int) -> int | None:
    data = os.pread(descriptor, 8, 0)
    return int.from_bytes(data, "big") if len(data) == 8 else None


def _set_number(descriptor: int, number: int) -> None:
    os.pwrite(descriptor, max(0, number).to_bytes(8, "big"), 0)
