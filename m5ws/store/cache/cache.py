"""A read-through cache on this machine's disk, in front of a remote store.

Of content-addressed objects it verifies nothing: `repository.objects` checks every byte against its digest, and
requests a `refetch` copy after a mismatch. So each read is hashed once, and a damaged entry is replaced without an
error. Copies of references are apart (`references`). A failure of the cache is never an error for
the reader: objects that cannot be cached come from the store, with one warning.
"""

import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from m5ws.errors import ObjectExists
from m5ws.store import permissions
from m5ws.store.cache.limit import CacheLimit, alone
from m5ws.store.cache.references import References
from m5ws.store.interface import Buffer, ObjectStat, ObjectStore
from m5ws.store.local import LocalStore, read

_OBJECTS = "objects/"
WHOLE_BYTES = 8 * 2**20
"""Objects up to this size are fetched whole when a part is read.

A pack is smaller, and its other files are read next. Of a larger object only the requested part is fetched.
"""

_TOUCH_S = 60.0
"""Uses of an entry within this time are recorded once, so there is one write a minute instead of one per read."""
_PATIENCE_S = 60.0
"""Longest wait for another process that fetches the same object, before this process fetches the object itself."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FREED_BYTES = 64 * 2**20
"""Bytes freed at once on a full disk: the size of the largest chunk."""

_log = logging.getLogger(__name__)


def cached(store: ObjectStore, directory: Path, limit_bytes: int, references: Path | None = None) -> ObjectStore:
    """Return `store` with a cache of at most `limit_bytes` in `directory`; `store` itself for a limit of 0.

    `references` is the folder for copies of references; without a folder there are none.
    """
    return CachedStore(store, directory, limit_bytes, references) if limit_bytes > 0 else store


class CachedStore:
    """`ObjectStore` and `FileBacked` on a store and a directory.

    Any number of processes may share the directory, for any stores, because keys are content-addressed. Created objects
    up to WHOLE_BYTES are cached too: the run that follows a snapshot reads its trees, records and packs. Larger objects
    are chunks of datasets and checkpoints. The machine that wrote them has their content, and they would evict objects
    that are read often.
    """

    def __init__(self, store: ObjectStore, directory: Path, limit_bytes: int, references: Path | None = None) -> None:
        self.origin = store
        self._limit_bytes = limit_bytes
        self._entries = LocalStore(directory, durable=False)
        self._room = CacheLimit(self._entries, limit_bytes)
        self.references = References(store.url, references) if references is not None else None
        self._large: set[str] = set()
        self.problem: OSError | None = None
        """The first reason why an object could not be cached."""

    @property
    def url(self) -> str:
        return self.origin.url

    @property
    def copies(self) -> tuple[Path, int]:
        """The directory of the copies, and their maximum total size in bytes."""
        return self._entries.root, self._limit_bytes

    @property
    def name(self) -> str:
        """The directory of the copies and its users, for messages."""
        return permissions.describe(self._entries.root)

    @property
    def capacity_bytes(self) -> int:
        """Bytes that fit for certain before the least recently used copies are deleted."""
        return self._room.capacity_bytes

    # --- reading -----------------------------------------------------------------------------------

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if not key.startswith(_OBJECTS):
            return self.origin.get(key, start, length) if start or length is not None else self._reference(key)
        data = self._read(key, start, length)
        if data is not None:
            return data
        if key in self._large and (start or length is not None):
            return self.origin.get(key, start, length)
        with alone(self._entries.root, key, _PATIENCE_S):
            data = self._read(key, start, length)
            return self._fetch(key, start, length) if data is None else data

    def copy(self, key: str) -> bytes | None:
        """Return the copy of a reference, or None."""
        return self.references.get(key) if self.references is not None else None

    def _reference(self, key: str) -> bytes:
        data = self.copy(key)
        if data is None:
            data = self.origin.get(key)
            if self.references is not None:
                self.references.keep(key, data)
        return data

    def refetch(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Delete the copy and read the object from the store itself, as `get`. Raises NotFound."""
        if not key.startswith(_OBJECTS):
            return self.origin.get(key, start, length)
        self._drop(key)
        return self._fetch(key, start, length)

    def cached_size(self, key: str) -> int | None:
        """Return the size of an object's copy and mark it as used; None if there is no copy."""
        descriptor = self.descriptor(key)
        if descriptor is None:
            return None
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def descriptor(self, key: str) -> int | None:
        try:
            descriptor = self._entries.descriptor(key)
        except OSError:
            return None
        if descriptor is not None:
            # Some file systems record no access time, so the modification time records the last use.
            with suppress(OSError):
                if os.fstat(descriptor).st_mtime < time.time() - _TOUCH_S:
                    os.utime(descriptor)
        return descriptor

    def _read(self, key: str, start: int, length: int | None) -> bytes | None:
        """Return the content of an entry, or None if there is none or the disk cannot read it."""
        descriptor = self.descriptor(key)
        if descriptor is None:
            return None
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            return read(descriptor, -1 if length is None else length)
        except OSError:
            self._drop(key)
            return None
        finally:
            os.close(descriptor)

    def _fetch(self, key: str, start: int, length: int | None) -> bytes:
        """Read from the store, and cache the object if it was read completely."""
        if not start and length is None:
            data = self.origin.get(key)
        else:
            # One request reads a small object completely, and shows whether an object is large.
            data = self.origin.get(key, 0, WHOLE_BYTES + 1)
            if len(data) > WHOLE_BYTES:
                self._large.add(key)
                within = length is not None and start + length <= len(data)
                return data[start : start + length] if within and length else self.origin.get(key, start, length)
        self._keep(key, data)
        return data if not start and length is None else data[start : None if length is None else start + length]

    # --- keeping -----------------------------------------------------------------------------------

    def _keep(self, key: str, data: Buffer) -> None:
        """Cache a whole object, if possible. Logs the first reason why an object cannot be cached."""
        size_bytes = memoryview(data).nbytes
        if size_bytes > self.capacity_bytes:
            return
        try:
            if self._entries.stat(key) is not None:
                return
            self._room.take(size_bytes)
            with suppress(ObjectExists):
                self._entries.create(key, data)
        except OSError as error:
            if self.problem is None:
                _log.warning("cannot write to the cache %s: %s", self.name, error)
            self.problem = self.problem or error
            if error.errno in _FULL:
                with suppress(OSError):
                    self._room.trim(0, at_least_bytes=_FREED_BYTES)

    def _drop(self, key: str) -> None:
        # `refetch` bypasses an entry that cannot be deleted.
        with suppress(OSError):
            self._entries.delete(key)

    # --- everything else ---------------------------------------------------------------------------

    def create(self, key: str, data: Buffer) -> None:
        self.origin.create(key, data)
        if key.startswith(_OBJECTS):
            if memoryview(data).nbytes <= WHOLE_BYTES:
                self._keep(key, data)
        elif self.references is not None:
            self.references.keep(key, bytes(data))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self.origin.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        return self.origin.names(prefix)

    def delete(self, key: str) -> None:
        self.origin.delete(key)
        if key.startswith(_OBJECTS):
            self._drop(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self.origin.stat(key)

    def now(self) -> float:
        return self.origin.now()
