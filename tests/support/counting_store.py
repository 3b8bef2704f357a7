"""A store that remembers what was read from it, and can go away."""

from collections.abc import Iterator

from m5ws.ports import Buffer, ObjectStat, ObjectStore


class Gone(BaseException):
    """Nothing catches it: whoever needed the store is shown up."""


class CountingStore:
    """`ports.ObjectStore`; `gets` are the keys that were read, and nothing of it can be read once it is `gone`."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.gets: list[str] = []
        self.gone = False

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._there(key)
        self.gets.append(key)
        return self._inner.get(key, start, length)

    def create(self, key: str, data: Buffer) -> None:
        self._there(key)
        self._inner.create(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        self._there(prefix)
        return self._inner.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        self._there(prefix)
        return self._inner.names(prefix)

    def delete(self, key: str) -> None:
        self._there(key)
        self._inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        self._there(key)
        return self._inner.stat(key)

    def _there(self, key: str) -> None:
        if self.gone:
            raise Gone(key)
