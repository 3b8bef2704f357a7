"""A remote store: it streams objects, and can damage them in transit."""

from collections.abc import Callable

from m5ws.store.interface import Buffer, ObjectStore
from tests.support.stores.counting_store import CountingStore

_PIECE_BYTES = 10_000


class FlowingStore(CountingStore):
    """`StreamingStore` on another store. `flows` lists the keys streamed. `damage` changes the bytes that arrive."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.flows: list[str] = []
        self.damage: Callable[[bytes], bytes] = bytes

    def stream(self, key: str, sink: Callable[[Buffer], object]) -> None:
        self.flows.append(key)
        data = self.damage(self._inner.get(key))
        for start in range(0, len(data), _PIECE_BYTES):
            sink(data[start : start + _PIECE_BYTES])
