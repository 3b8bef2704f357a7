"""A store that records its reads, and can become unreachable."""

from m5ws.store.interface import ObjectStore
from tests.support.stores.passing_store import PassingStore


class Gone(BaseException):
    """No code catches this error, so any use of the store fails the test."""


class CountingStore(PassingStore):
    """`ObjectStore`. `gets` lists the keys read. Once it is `gone`, every read fails."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, self._counts)
        self.gets: list[str] = []
        self.gone = False

    def _counts(self, operation: str, key: str) -> None:
        if self.gone:
            raise Gone(key)
        if operation == "get":
            self.gets.append(key)
