"""A cache entry while its bytes arrive. It appears when it is complete, or not at all.

No failure here is an error for the reader, who gets the bytes from the store. An entry that cannot be kept is
abandoned, and `problem` holds the reason.
"""

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from m5ws.errors import ObjectExists
from m5ws.store.cache.limit import CacheLimit
from m5ws.store.interface import Buffer
from m5ws.store.local import LocalStore, TemporaryFile

_FULL = (errno.ENOSPC, errno.EDQUOT)
_AT_LEAST_BYTES = 64 * 2**20
"""Bytes freed at once on a full disk: the size of the largest object."""


class CacheEntry:
    """An entry in progress: `add` all bytes of an object, then `keep` it."""

    def __init__(self, entries: LocalStore, room: CacheLimit, key: str, stack: ExitStack) -> None:
        self._entries = entries
        self._room = room
        self._key = key
        self._draft: TemporaryFile | None = None
        self._trimmed = False
        self.problem: OSError | None = None
        try:
            room.prepare()
            self._draft = stack.enter_context(entries.draft())
        except OSError as error:
            self.problem = error

    def add(self, piece: Buffer) -> None:
        """Append the next bytes."""
        view = memoryview(piece).cast("B")
        while view and self._draft is not None:
            if self._draft.size_bytes + view.nbytes > self._room.capacity_bytes:
                self._draft = None
                return
            try:
                view = view[self._draft.write(view) :]
            except OSError as error:
                self._meet(error)

    def keep(self) -> None:
        """Publish the entry. All bytes of the object must have been added."""
        if self._draft is None or self._entries.stat(self._key) is not None:
            return
        try:
            self._room.take(self._draft.size_bytes)
            # Published from here on.
            with suppress(ObjectExists):
                self._entries.publish(self._draft, self._key)
        except OSError as error:
            self.problem = error

    def _meet(self, error: OSError) -> None:
        """Free space once if the disk is full, also of other files; otherwise abandon the entry."""
        try:
            if error.errno not in _FULL or self._trimmed:
                raise error
            self._trimmed = True
            self._room.trim(0, at_least_bytes=_AT_LEAST_BYTES)
        except OSError as failure:
            self._draft, self.problem = None, failure


@contextmanager
def filling(entries: LocalStore, room: CacheLimit, key: str) -> Iterator[CacheEntry]:
    """Yield an entry to fill. An entry that was not kept is deleted at the end."""
    with ExitStack() as stack:
        yield CacheEntry(entries, room, key, stack)
