"""Copies of references that never change, on this machine's disk, in front of a remote store: records of runs, batches,
verdicts, annotations, notes, incidents, removals, the format.

Absence is never remembered, because a reference can appear at any time. References that gc deletes have no copies. A
copy has a checksum, and is read again from the store if it is damaged. The copies are the user's own, also beside a
cache of a group: another user could forge them, because a reference is not named by its content.
"""

from contextlib import suppress
from pathlib import Path

import blake3

from m5ws.errors import CorruptObject, NotFound, ObjectExists
from m5ws.store.cache.limit import CacheLimit
from m5ws.store.interface import FORMAT
from m5ws.store.local import LocalStore

_KEPT = (FORMAT, "incidents/", "jobs/", "notes/", "removed/", "runs/", "snapshots/")
_DELETED = ("/checkpoints/", "/outputs/")
"""Parts of keys that gc deletes."""
_LARGEST_BYTES = 2**20
_LIMIT_BYTES = 2**30
_SEAL_BYTES = 32


class References:
    """Copies of references of the store at `url`, in a directory."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._entries = LocalStore(directory, durable=False)
        self._room = CacheLimit(self._entries, _LIMIT_BYTES)

    @property
    def directory(self) -> Path:
        """The directory of the copies."""
        return self._entries.root

    def get(self, key: str) -> bytes | None:
        """Return the copy of a reference; None if there is none, or if it is damaged."""
        if not _is_kept(key):
            return None
        entry = self._entry(key)
        try:
            stored = self._entries.get(entry)
        except (NotFound, CorruptObject, OSError):
            return None
        data, seal = stored[:-_SEAL_BYTES], stored[-_SEAL_BYTES:]
        if blake3.blake3(data).digest() == seal:
            return data
        with suppress(OSError):
            self._entries.delete(entry)
        return None

    def keep(self, key: str, data: bytes) -> None:
        """Keep a copy of a published reference, if possible. Without copies, references come from the store."""
        if not _is_kept(key) or len(data) > _LARGEST_BYTES:
            return
        with suppress(OSError, ObjectExists, CorruptObject):
            self._room.take(len(data))
            self._entries.create(self._entry(key), data + blake3.blake3(data).digest())

    def _entry(self, key: str) -> str:
        name = blake3.blake3(f"{self._url}\n{key}".encode()).hexdigest()
        return f"objects/{name[:2]}/{name}"


def _is_kept(key: str) -> bool:
    return key.startswith(_KEPT) and not any(part in key for part in _DELETED)
