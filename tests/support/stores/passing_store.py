"""A store that announces every operation, and then passes it on. Tests inject failures through it."""

from collections.abc import Callable, Iterator

from m5ws.store.interface import Buffer, ObjectStat, ObjectStore

Before = Callable[[str, str], object]
"""Called with the operation's name and its key or prefix. Its errors become errors of the operation."""


class PassingStore:
    """`ObjectStore` on another store. `before` is called before each operation, `created` after a create."""

    def __init__(
        self, inner: ObjectStore, before: Before | None = None, created: Callable[[str], object] | None = None
    ) -> None:
        self._inner = inner
        self._before: Before = before or (lambda operation, key: None)
        self._created: Callable[[str], object] = created or (lambda key: None)

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._before("get", key)
        return self._inner.get(key, start, length)

    def create(self, key: str, data: Buffer) -> None:
        self._before("create", key)
        self._inner.create(key, data)
        self._created(key)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        self._before("list", prefix)
        return self._inner.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        self._before("names", prefix)
        return self._inner.names(prefix)

    def delete(self, key: str) -> None:
        self._before("delete", key)
        self._inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        self._before("stat", key)
        return self._inner.stat(key)

    def now(self) -> float:
        self._before("now", "")
        return self._inner.now()
