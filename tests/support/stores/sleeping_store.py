"""A store whose writer pauses just before it publishes. `meanwhile` runs during the pause."""

from collections.abc import Callable

from m5ws.store.interface import ObjectStore
from tests.support.stores.passing_store import PassingStore


class SleepingStore(PassingStore):
    """`ObjectStore` that calls `meanwhile` once, before the first create under `prefix`."""

    def __init__(self, inner: ObjectStore, prefix: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner, self._sleeps)
        self._prefix = prefix
        self._meanwhile = meanwhile
        self.slept = False

    def _sleeps(self, operation: str, key: str) -> None:
        if operation == "create" and key.startswith(self._prefix) and not self.slept:
            self.slept = True
            self._meanwhile()
