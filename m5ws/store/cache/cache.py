"""A read-through cache on this machine's disk, before a store that is far away.

It keeps objects that are named by their content and nothing else: references and ledgers may appear at any
time. It verifies nothing itself: `repository.objects` checks every byte against its digest wherever it comes
from, and asks for a `fresh` copy where they differ. So each read is hashed once, by the one that knows what it
asked for, and a damaged entry is replaced, never an error. No failure of the cache is one of the reader: what
cannot be kept is served from the store, and said once.
"""

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m5ws import locks
from m5ws.store.cache.entry import Filling, filling
from m5ws.store.cache.limit import Room, open_private
from m5ws.store.interface import Buffer, Flowing, ObjectStat, ObjectStore
from m5ws.store.local import LocalStore, read

_OBJECTS = "objects/"
WHOLE_BYTES = 8 * 2**20
"""An object of at most so much is fetched whole when a part of it is asked for: the size of a pack, whose other
files are asked for next. Of a larger one, the part alone is: nothing says that the rest will be wanted."""

_TOUCH_S = 60.0
"""How old an entry's last use may be before a use is written down: a write a minute, not a write a read."""
_PATIENCE_S = 60.0
"""How long a process waits for another that fetches what it wants, before it fetches that itself."""
_STRIPES = 4096
_PIECE_BYTES = 2**20

_log = logging.getLogger(__name__)


def cached(store: ObjectStore, directory: Path, limit_bytes: int) -> ObjectStore:
    """Return `store` with a cache of at most `limit_bytes` in `directory` before it; none for a limit of 0."""
    return Cached(store, directory, limit_bytes) if limit_bytes > 0 else store


class Cached:
    """`ObjectStore`, `Near`, `OnDisk` and `Flowing` on a store and a directory.

    Any number of processes may share the directory, for any stores: an object's name says its bytes. What is
    created is kept too, up to WHOLE_BYTES: trees, records and packs are read back by the run that follows a
    snapshot. Larger objects are chunks of datasets and checkpoints, which the machine that wrote them has, and
    which would drive out what is read often.
    """

    def __init__(self, store: ObjectStore, directory: Path, limit_bytes: int) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        self._entries = LocalStore(directory, durable=False)
        self._room = Room(self._entries, limit_bytes)
        self._large: set[str] = set()
        self._told = False

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def copies(self) -> tuple[Path, int]:
        return self._entries.root, self._limit_bytes

    @property
    def capacity_bytes(self) -> int:
        return self._room.capacity_bytes

    # --- reading -----------------------------------------------------------------------------------

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if not key.startswith(_OBJECTS):
            return self._store.get(key, start, length)
        found = self._read(key, start, length)
        if found is not None:
            return found
        if key in self._large and (start or length is not None):
            return self._store.get(key, start, length)
        with self._alone(key):
            found = self._read(key, start, length)
            return self._fetch(key, start, length) if found is None else found

    def fresh(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if not key.startswith(_OBJECTS):
            return self._store.get(key, start, length)
        self._drop(key)
        return self._fetch(key, start, length)

    def flow(self, key: str, sink: Callable[[Buffer], object]) -> None:
        if not isinstance(self._store, Flowing) or not key.startswith(_OBJECTS):
            sink(self.get(key))
        elif not self._copied(key, sink):
            with self._alone(key):
                if not self._copied(key, sink):
                    self._flow(self._store, key, sink)

    def held(self, key: str) -> int | None:
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
            # An access time is not kept on every file system; the time of the last change is ours to set.
            with suppress(OSError):
                if os.fstat(descriptor).st_mtime < time.time() - _TOUCH_S:
                    os.utime(descriptor)
        return descriptor

    def _read(self, key: str, start: int, length: int | None) -> bytes | None:
        """Return what an entry holds, or None where there is none or the disk cannot read it."""
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
        """Read from the store, and keep the object where all of it was read."""
        if not start and length is None:
            data = self._store.get(key)
        else:
            # One request gives a small object whole and tells that a larger one is larger.
            data = self._store.get(key, 0, WHOLE_BYTES + 1)
            if len(data) > WHOLE_BYTES:
                self._large.add(key)
                within = length is not None and start + length <= len(data)
                return data[start : start + length] if within and length else self._store.get(key, start, length)
        self._keep(key, data)
        return data if not start and length is None else data[start : None if length is None else start + length]

    def _copied(self, key: str, sink: Callable[[Buffer], object]) -> bool:
        """Hand an entry on, a piece at a time, as far as the disk can read it; return whether there is one."""
        descriptor = self.descriptor(key)
        if descriptor is None:
            return False
        try:
            while piece := self._piece(descriptor, key):
                sink(piece)
        finally:
            os.close(descriptor)
        return True

    def _piece(self, descriptor: int, key: str) -> bytes:
        try:
            return os.read(descriptor, _PIECE_BYTES)
        except OSError:
            # What is missing is missed by whoever verifies the bytes, and then read anew.
            self._drop(key)
            return b""

    def _flow(self, store: Flowing, key: str, sink: Callable[[Buffer], object]) -> None:
        """Hand an object on from the store, and keep it: what arrives is written twice, and read from no disk."""
        with self._filling(key) as entry:

            def both(piece: Buffer) -> None:
                sink(piece)
                entry.add(piece)

            store.flow(key, both)
            entry.keep()

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Hold the lock of an object while it is fetched, so that a node fetches it once.

        The kernel takes the lock back from a process that is killed; one that hangs is waited for no longer than
        _PATIENCE_S. Nobody who holds one asks for another, so there is no deadlock. Without locks, everybody fetches.
        """
        name = f"{zlib.crc32(key.encode()) % _STRIPES:03x}"
        try:
            descriptor = open_private(self._entries.root, f"locks/{name}")
        except OSError:
            yield
            return
        try:
            # Without a lock, after _PATIENCE_S or on a file system that has none, it is fetched more than once.
            with suppress(OSError):
                locks.acquire(descriptor, _PATIENCE_S)
            yield
        finally:
            os.close(descriptor)

    # --- keeping -----------------------------------------------------------------------------------

    @contextmanager
    def _filling(self, key: str) -> Iterator[Filling]:
        """Yield an entry to be filled; what keeps it from being kept is said once."""
        with filling(self._entries, self._room, key) as entry:
            yield entry
        if entry.problem is not None and not self._told:
            _log.warning("the cache in %s keeps nothing new: %s", self._entries.root, entry.problem)
            self._told = True

    def _keep(self, key: str, data: Buffer) -> None:
        """Make an entry of a whole object, if that can be done at all."""
        if memoryview(data).nbytes > self.capacity_bytes or self._entries.stat(key) is not None:
            return
        with self._filling(key) as entry:
            entry.add(data)
            entry.keep()

    def _drop(self, key: str) -> None:
        # One that cannot be removed is passed over by `fresh` all the same.
        with suppress(OSError):
            self._entries.delete(key)

    # --- everything else ---------------------------------------------------------------------------

    def create(self, key: str, data: Buffer) -> None:
        self._store.create(key, data)
        if key.startswith(_OBJECTS) and memoryview(data).nbytes <= WHOLE_BYTES:
            self._keep(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self._store.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._store.names(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)
        if key.startswith(_OBJECTS):
            self._drop(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self._store.stat(key)
