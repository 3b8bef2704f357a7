"""Size limit of a cache directory, and eviction of the least recently used entries.

The processes of a machine share one number, in the file `usage`. It is raised before an entry appears, and corrected by
the next trim, the only operation that lists all entries. So it is never below the real size, even after kills, except
for entries filled during a trim. Filling an entry costs a lock and eight bytes.
"""

import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m5ws import locks
from m5ws.store import permissions
from m5ws.store.local import LocalStore

_OBJECTS = "objects/"
FILES = "objects/files/"
"""Prefix of the files of remote datasets, each under the digest that its manifest has."""
_STRIPES = 4096
_SPARE = 16
"""A trim leaves this fraction (1/16) free, so that trims are rare."""


def capacity(limit_bytes: int) -> int:
    """Return the bytes that a cache has after a trim."""
    return limit_bytes - limit_bytes // _SPARE


class CacheLimit:
    """The size limit of a cache directory, shared by all processes that use it."""

    def __init__(self, entries: LocalStore, limit_bytes: int) -> None:
        self._entries = entries
        self.limit_bytes = limit_bytes
        self.capacity_bytes = capacity(limit_bytes)

    def take(self, size_bytes: int) -> None:
        """Count an entry that is about to appear, and evict others if the limit is exceeded. Raises OSError."""
        with self._usage() as descriptor:
            # If the number is missing, the cache counts as full, and the trim that follows corrects it.
            known = _number(descriptor)
            total = size_bytes + (self.limit_bytes if known is None else known)
            _set_number(descriptor, total)
        if total > self.limit_bytes:
            # Far above the limit, writers wait for the process that trims; otherwise they would outrun it.
            self.trim(size_bytes, wait=total > self.limit_bytes + self.limit_bytes // 4)

    def trim(self, wanted_bytes: int, at_least_bytes: int = 0, *, wait: bool = False) -> None:
        """Evict the least recently used entries until `wanted_bytes` more fit, and at least `at_least_bytes`.

        If another process is trimming, does nothing, or trims after that process with `wait`. Raises OSError.
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
                # A process that is reading the entry can continue: the kernel frees the bytes with the last descriptor.
                if self._delete_unused(entry.key):
                    total -= entry.size_bytes
            with self._usage() as descriptor:
                filled = max(0, (_number(descriptor) or 0) - before)
                _set_number(descriptor, total + wanted_bytes + filled)

    def _delete_unused(self, key: str) -> bool:
        """Delete an entry. Return False if it is a file of a dataset that a process holds (`files.FileCache`)."""
        if not key.startswith(FILES):
            self._entries.delete(key)
            return True
        try:
            descriptor = os.open(self._entries.root / key, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        try:
            if unused := locks.acquire(descriptor):
                self._entries.delete(key)
            return unused
        finally:
            locks.release(descriptor)

    @contextmanager
    def _usage(self) -> Iterator[int]:
        with self._locked("usage", math.inf) as descriptor:
            assert descriptor is not None
            yield descriptor

    @contextmanager
    def _locked(self, name: str, wait_s: float) -> Iterator[int | None]:
        """Hold a lock, which the kernel releases after a kill. Yield None if another process holds it."""
        descriptor = open_shared(self._entries.root, name)
        try:
            yield descriptor if locks.acquire(descriptor, wait_s) else None
        finally:
            locks.release(descriptor)


@contextmanager
def alone(root: Path, name: str, wait_s: float, kind: str = "") -> Iterator[None]:
    """Hold the lock of an entry of a kind while a process fetches the entry, so that a machine fetches it once.

    The kernel releases the lock of a killed process. No process holds two locks of a kind, so there is no deadlock. If
    the wait ends after `wait_s`, or the file system has no locks, the entry may be fetched twice.
    """
    try:
        descriptor = open_shared(root, f"locks/{kind}{zlib.crc32(name.encode()) % _STRIPES:03x}")
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            locks.acquire(descriptor, wait_s)
        yield
    finally:
        locks.release(descriptor)


def open_shared(root: Path, name: str) -> int:
    """Open a file that all users of a cache share. Creates the cache, for its owner alone, if it does not exist."""
    path = root / name
    if not path.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        if not path.parent.is_dir():
            permissions.make_folder(root, path.parent)
        _create(root, path)
    return os.open(path, os.O_RDWR)


def _create(root: Path, path: Path) -> None:
    """Create an empty file, which appears with its permissions; do nothing if it exists."""
    temporary = path.with_name(f".{os.urandom(12).hex()}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        permissions.set_mode(root, descriptor, writable=True)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(descriptor)
        os.unlink(temporary)


def _number(descriptor: int) -> int | None:
    data = os.pread(descriptor, 8, 0)
    return int.from_bytes(data, "big") if len(data) == 8 else None


def _set_number(descriptor: int, number: int) -> None:
    os.pwrite(descriptor, max(0, number).to_bytes(8, "big"), 0)
