"""Files of remote datasets in the cache directory, under the limit of the cache. Each is complete under its name.

One process of a machine downloads a file, and other processes wait for the lock of the file. The kernel releases the
locks of a killed process, and an unfinished download has no name. A process holds a shared lock on the files that it
used last, and eviction skips locked files.
"""

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Protocol

from m5ws import locks
from m5ws.errors import M5Error, ObjectExists
from m5ws.store.cache.limit import FILES, CacheLimit, alone
from m5ws.store.local import LocalStore

_HELD = 64
"""Files that a process holds: more than a loader reads at a time."""
_TOUCH_S = 60.0

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """The receiver of one download of a file."""

    def write(self, block: bytes) -> None:
        """Append a block. Raises OSError."""

    def finish(self, place: str) -> None:
        """Verify all bytes, which were read from `place`. Raises CorruptObject."""


class FileTooLarge(M5Error):
    """A file of a dataset does not fit into the cache."""

    hint = "Increase [store] cache_limit in m5ws.toml."


class FileCache:
    """The files of a cache directory that this process uses. Create another object after a fork."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._entries = LocalStore(root, durable=False)
        self._room = CacheLimit(self._entries, limit_bytes)
        self._held = OrderedDict[str, int]()
        self._verified = set[tuple[str, int]]()
        self._lock = threading.Lock()

    def has(self, name: str, size_bytes: int) -> bool:
        """Return True if there is a copy of the right size. Its bytes are verified when the file is used."""
        with suppress(OSError):
            return self._path(name).stat().st_size == size_bytes
        return False

    def fetch(
        self, name: str, size_bytes: int, download: Callable[[int], None], is_intact: Callable[[int], bool]
    ) -> Path:
        """Return the path of a file. `download` writes verified bytes to a descriptor; `is_intact` verifies a copy.

        A copy is verified once by each process, and replaced if it is damaged. Raises FileTooLarge, OSError, and the
        errors of `download`.
        """
        if self._hold(name, size_bytes, is_intact):
            return self._path(name)
        if size_bytes > self._room.capacity_bytes:
            limit = f"a cache of {self._room.limit_bytes:,} bytes"
            raise FileTooLarge(f"a file of {size_bytes:,} bytes does not fit into {limit} in {self._entries.root}")
        # The download of another process has its own time limits.
        with alone(self._entries.root, name, inf, "file-"):
            while not self._hold(name, size_bytes, is_intact):
                self._download(name, size_bytes, download)
        return self._path(name)

    def _download(self, name: str, size_bytes: int, download: Callable[[int], None]) -> None:
        for is_last in (False, True):
            try:
                self._room.take(size_bytes)
                with suppress(ObjectExists):
                    self._entries.create_file(_key(name), size_bytes, download)
                self._verified.add((name, self._path(name).stat().st_ino))
            except OSError as error:
                if is_last or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._room.trim(0, at_least_bytes=size_bytes, wait=True)
            else:
                return

    def _hold(self, name: str, size_bytes: int, is_intact: Callable[[int], bool]) -> bool:
        """Hold a copy, so that it stays. Return False if there is none; a damaged copy is deleted."""
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                return True
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        with suppress(OSError):  # Some file systems have no locks.
            locks.share(descriptor)
        status = os.fstat(descriptor)
        identity = (name, status.st_ino)
        if not status.st_nlink:
            locks.release(descriptor)
            return False
        if status.st_size != size_bytes or (identity not in self._verified and not is_intact(descriptor)):
            _log.warning("a damaged copy in the cache is replaced: %s", self._path(name))
            self._path(name).unlink(missing_ok=True)
            locks.release(descriptor)
            return False
        self._verified.add(identity)
        with suppress(OSError):
            if status.st_mtime < time.time() - _TOUCH_S:
                os.utime(descriptor)
        self._keep(name, descriptor)
        return True

    def _keep(self, name: str, descriptor: int) -> None:
        with self._lock:
            surplus = [self._held.pop(name)] if name in self._held else []
            self._held[name] = descriptor
            if len(self._held) > _HELD:
                surplus.append(self._held.popitem(last=False)[1])
        for each in surplus:
            locks.release(each)

    def _path(self, name: str) -> Path:
        return self._entries.root / _key(name)


def _key(name: str) -> str:
    kind, _, value = name.partition(":")
    return f"{FILES}{value[:2]}/{kind}-{value}"
