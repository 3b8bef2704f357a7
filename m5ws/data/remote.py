"""Files of a remote dataset, downloaded into the cache of this machine and verified against the manifest."""

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from m5ws.data import origins
from m5ws.errors import CorruptObject, M5Error, NotFound
from m5ws.records.snapshot import Manifest, ManifestFile, RemoteDataset
from m5ws.store.cache.files import FileCache
from m5ws.store.traffic import traffic

_BLOCK_BYTES = 2**20


class RemoteFiles:
    """The files of a remote dataset by path. Can be pickled, and used by forked processes and several threads.

    `counted` is the file for the bytes of the process that downloads, if it has no file yet.
    """

    def __init__(
        self, remote: RemoteDataset, manifest: Manifest, cache: Path, limit_bytes: int, counted: Path | None = None
    ) -> None:
        self.remote = remote
        self._counted = counted
        self.digest = remote.manifest
        self.files = {file.path: file for file in manifest.files}
        self._place = (cache, limit_bytes)
        self._opened: tuple[int, FileCache, origins.Origin] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def missing(self) -> list[ManifestFile]:
        """Return the files that this machine's cache does not have."""
        cache, _ = self._open()
        return [file for file in self.files.values() if not cache.has(file.digest, file.size_bytes)]

    def fetch(self, path: str) -> Path:
        """Return the path of a file in the cache. Raises CorruptObject, NotFound, FileTooLarge, M5Error, OSError."""
        cache, origin = self._open()
        file = self.files[path]
        name = os.path.join(self.remote.folder, file.path)

        def download(descriptor: int) -> None:
            try:
                origin.download(file, lambda: _Verifying(name, file, descriptor))
            except NotFound as error:
                raise NotFound(f"{name}: {error}", hint=_MISSING) from error
            except CorruptObject:
                raise
            except M5Error as error:
                raise type(error)(f"{name}: {error}", hint=error.hint) from error

        return cache.fetch(file.digest, file.size_bytes, download, lambda descriptor: _is_intact(descriptor, file))

    def _open(self) -> tuple[FileCache, origins.Origin]:
        """Return the cache and the remote of this process: neither survives a fork."""
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                if self._counted is not None:
                    traffic.count_to(self._counted)
                self._opened = (os.getpid(), FileCache(*self._place), origins.open_origin(self.remote))
            return self._opened[1:]


_MISSING = "Restore the object in the remote. m5ws has no other copy: the dataset stays in its remote ([data])."
_DAMAGED = "Restore the object in the remote from a good copy. Nothing of the file was used."


class _Verifying:
    """One download of a file to a descriptor, from the file's beginning. `finish` verifies its size and digest."""

    def __init__(self, name: str, file: ManifestFile, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self._name, self._file, self._descriptor = name, file, descriptor
        self._hash = _hasher(file.digest)
        self._size_bytes = 0

    def write(self, block: bytes) -> None:
        self._hash.update(block)
        self._size_bytes += len(block)
        view = memoryview(block)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def finish(self, place: str) -> None:
        """Raise CorruptObject unless the file is complete and has the pinned bytes."""
        kind = self._file.digest.partition(":")[0]
        actual = f"{kind}:{self._hash.hexdigest()}"
        if (self._size_bytes, actual) != (self._file.size_bytes, self._file.digest):
            raise CorruptObject(
                f"checksum mismatch: {self._name} in {place}: expected {self._file.size_bytes:,} bytes with "
                f"{self._file.digest}, found {self._size_bytes:,} bytes with {actual}",
                hint=_DAMAGED,
            )


def _is_intact(descriptor: int, file: ManifestFile) -> bool:
    hasher, offset = _hasher(file.digest), 0
    while block := os.pread(descriptor, _BLOCK_BYTES, offset):
        hasher.update(block)
        offset += len(block)
    return bool(hasher.hexdigest() == file.digest.partition(":")[2])


def _hasher(digest: str) -> Any:
    kind = digest.partition(":")[0]
    return hashlib.new(kind, usedforsecurity=False)
