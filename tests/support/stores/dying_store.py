"""A store whose process dies: after its n-th write, nothing more happens."""

from m5ws.store.interface import ObjectStore
from tests.support.stores.passing_store import PassingStore


class Died(BaseException):
    """No code catches this error, as no code catches a kill."""


class DyingStore(PassingStore):
    """`ObjectStore` that allows `lives` creates, and dies at the next create."""

    def __init__(self, inner: ObjectStore, lives: int) -> None:
        super().__init__(inner, self._dies, self._written)
        self.lives = lives

    def _dies(self, operation: str, key: str) -> None:
        if operation == "create" and self.lives <= 0:
            raise Died(key)

    def _written(self, _key: str) -> None:
        self.lives -= 1
