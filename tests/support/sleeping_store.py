"""A store whose writer falls asleep just before it publishes: the world goes on, and `meanwhile` is what happens."""

from collections.abc import Callable, Iterator

from m5ws.ports import Buffer, ObjectStat, ObjectStore


class SleepingStore:
    """`ports.ObjectStore` that calls `meanwhile` once, before the first create under `prefix`."""

    def __init__(self, inner: ObjectStore, prefix: str, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._prefix = prefix
        self._meanwhile = meanwhile
        self.slept = False

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.get(key, start, length)

    def create(self, key: str, data: Buffer) -> None:
        if key.startswith(self._prefix) and not self.slept:
            self.slept = True
            self._meanwhile()
        self._inner.create(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self._inner.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._inner.names(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self._inner.stat(key)
