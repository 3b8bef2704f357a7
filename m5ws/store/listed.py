"""A store of which one prefix was listed: names, sizes and absent keys below the prefix cost no further request."""

from collections.abc import Iterator

from m5ws.errors import NotFound
from m5ws.store.interface import Buffer, ObjectStat, ObjectStore


class ListedStore:
    """`ObjectStore` for readers. Below `prefix`, all answers are of the moment at which the store was opened."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._stats = {stat.key: stat for stat in store.list(prefix)}

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if key.startswith(self._prefix) and key not in self._stats:
            raise NotFound(f"{key} is not in the store {self.url}")
        return self._store.get(key, start, length)

    def create(self, key: str, data: Buffer) -> None:
        self._store.create(key, data)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        if not prefix.startswith(self._prefix):
            return self._store.list(prefix)
        return (stat for key, stat in self._stats.items() if key.startswith(prefix))

    def names(self, prefix: str) -> tuple[str, ...]:
        if not prefix.startswith(self._prefix):
            return self._store.names(prefix)
        below = (key.removeprefix(prefix) for key in self._stats if key.startswith(prefix))
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self._stats.get(key) if key.startswith(self._prefix) else self._store.stat(key)

    def now(self) -> float:
        return self._store.now()
