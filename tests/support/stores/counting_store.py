"""A store that remembers what was read from it, and can go away."""

from m5ws.store.interface import ObjectStore
from tests.support.stores.passing_store import PassingStore


class Gone(BaseException):
    """Nothing catches it: whoever needed the store is shown up."""


class CountingStore(PassingStore):
    """`ObjectStore`; `gets` are the keys that were read, and nothing of it can be read once it is `gone`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, self._counts)
        self.gets: list[str] = []
        self.gone = False

    def _counts(self, operation: str, key: str) -> None:
        if self.gone:
            raise Gone(key)
        if operation == "get":
            self.gets.append(key)
