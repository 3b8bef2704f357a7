"""Small files that the processes of a node make once and share: indexes of datasets, and measured lengths.

In a run they are entries of the node's cache: they count for its limit, and the entries used longest ago are evicted.
Each file ends with the digest of its content, so a torn or damaged file is made again.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path

from m5ws.errors import CorruptObject, NotFound, ObjectExists
from m5ws.records import codec
from m5ws.store.cache.limit import CacheLimit, alone
from m5ws.store.local import LocalStore

_SAMPLES = "objects/samples/"
"""Prefix of these files in a cache directory."""


class KeptFiles:
    """The files below a folder `inner` of the cache directory `root`, which has no limit without `limit_bytes`.

    Can be pickled.
    """

    def __init__(self, root: Path, limit_bytes: int | None = None, inner: str = "") -> None:
        self.folder = root / _SAMPLES / inner
        self._root, self._prefix = root, f"{_SAMPLES}{inner}"
        self._entries = LocalStore(root, durable=False)
        self._room = CacheLimit(self._entries, limit_bytes) if limit_bytes is not None else None

    def get(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the content of a file. If the file does not exist, one process of the node makes it. Raises OSError,
        and the errors of `make`.
        """
        key = f"{self._prefix}{name}"
        if (content := self._read(key)) is None:
            with alone(self._root, key, inf, "samples-"):
                if (content := self._read(key)) is None:
                    content = make()
                    data = codec.sealed(content)
                    if self._room is not None:
                        self._room.take(len(data))
                    with suppress(ObjectExists):
                        self._entries.create(key, data)
        return content

    def _read(self, key: str) -> bytes | None:
        try:
            content = codec.unsealed(self._entries.get(key), key)
        except NotFound:
            return None
        except CorruptObject:
            self._entries.delete(key)
            return None
        with suppress(OSError):
            os.utime(self._root / key)
        return content
