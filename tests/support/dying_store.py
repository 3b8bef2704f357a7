"""A store whose process dies: after its n-th write, nothing more is done."""

from collections.abc import Iterator

from m5ws.ports import Buffer, ObjectStat, ObjectStore


class Died(BaseException):
    """No code catches it, as no code catches a kill."""


class DyingStore:
    """`ports.ObjectStore` that lets `lives` objects be created and dies instead of creating the next."""

    def __init__(self, inner: ObjectStore, lives: int) -> None:
        self._inner = inner
        self.lives = lives

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._inner.get(key, start, length)

    def create(self, key: str, data: Buffer) -> None:
        if self.lives <= 0:
            raise Died(key)
        self._inner.create(key, data)
        self.lives -= 1

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self._inner.list(prefix)

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._inner.names(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def stat(self, key: str) -> ObjectStat | None:
        return self._inner.stat(key)
