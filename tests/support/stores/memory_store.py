"""A store in memory, fast enough for thousands of schedules. Its clock is the number of objects ever created."""

import threading
from collections.abc import Iterator

from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.store.interface import Buffer, ObjectStat

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


class MemoryStore:
    """`ObjectStore` in a dictionary."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self._created = 0
        self._lock = threading.Lock()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            data, _ = self.objects[key]
        except KeyError as error:
            raise NotFound(f"{key} is not in the store {self.url}") from error
        return data[start:] if length is None else data[start : start + length]

    def create(self, key: str, data: Buffer) -> None:
        if not key or not _SAFE.issuperset(key) or any(part in ("", ".", "..") for part in key.split("/")):
            raise UsageError(f"not a store key: {key!r}")
        with self._lock:
            if key in self.objects:
                raise ObjectExists(key)
            self._created += 1
            self.objects[key] = (bytes(data), float(self._created))

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and (found := self.stat(key)) is not None:
                yield found

    def names(self, prefix: str) -> tuple[str, ...]:
        found = [key for key in list(self.objects) if key.startswith(prefix)]
        return tuple(sorted({key[len(prefix) :].split("/")[0] for key in found}))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def now(self) -> float:
        return float(self._created)

    def stat(self, key: str) -> ObjectStat | None:
        found = self.objects.get(key)
        return ObjectStat(key=key, size_bytes=len(found[0]), modified_s=found[1]) if found else None
