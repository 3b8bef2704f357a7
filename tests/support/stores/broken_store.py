"""Stores that break one promise each, for tests that must detect it."""

import itertools
from collections.abc import Iterator

from m5ws.errors import NotFound
from m5ws.store.interface import Buffer, ObjectStat, ObjectStore
from m5ws.store.local import LocalStore

# One call in this many breaks.
_EVERY = 5

BREAKS = {
    "forgets": "lost",
    "stores other bytes": "lost",
    "overwrites": "two winners",
    "says absent on get": "said absent",
    "leaves out of list": "said absent",
    "cuts names": "wrong bytes",
    "raises KeyError": "unclear error",
}


class BrokenStore:
    """`ObjectStore` on a directory. Some calls break as `breaks` selects, a key of `BREAKS`."""

    def __init__(self, inner: LocalStore, breaks: str) -> None:
        assert breaks in BREAKS
        self._inner: ObjectStore = inner
        self._root = inner.root
        self._breaks = breaks
        self._calls = itertools.count(1)

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if self._now("says absent on get"):
            raise NotFound(key)
        if self._now("raises KeyError"):
            raise KeyError(key)
        found = self._inner.get(key, start, length)
        # A second reading hides damage of an object's single reading.
        return found[:-1] if not key.startswith("objects/") and self._now("cuts names") else found

    def create(self, key: str, data: Buffer) -> None:
        if self._now("forgets"):
            return
        if self._now("stores other bytes") and memoryview(data).nbytes:
            data = bytes(memoryview(data).nbytes)
        if self._breaks == "overwrites" and key.startswith("races/"):
            (self._root / key).parent.mkdir(exist_ok=True)
            (self._root / key).write_bytes(data)
            return
        self._inner.create(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        found = list(self._inner.list(prefix))
        yield from found[:-1] if self._breaks == "leaves out of list" else found

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._inner.names(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self._inner.stat(key)

    def _now(self, breaks: str) -> bool:
        return self._breaks == breaks and next(self._calls) % _EVERY == 0

    def now(self) -> float:
        return self._inner.now()
