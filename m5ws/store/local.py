"""A store in a directory, with the standard library alone.

An object appears under its key by one `link(2)` of a complete, synced file: readers see it whole or not
at all, whatever was killed when, and the link fails if the key is taken, on every POSIX file system.
Nothing under a key is ever opened for writing.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from m5ws.errors import NotFound, ObjectExists
from m5ws.ports import Buffer, ObjectStat
from m5ws.store.keys import checked

_TEMPORARY = "tmp"
_STALE_S = 24 * 3600.0
_STALE_COPY_S = 3600.0


class LocalStore:
    """`ports.ObjectStore` on a directory, which is made with the first object.

    A store whose objects can be had again (a cache) need not be `durable`: nothing is synced, and a torn file
    after a power failure is found by its digest.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root
        self._durable = durable
        self._sweep()

    @property
    def url(self) -> str:
        return str(self.root)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                if start:
                    file.seek(start)
                return read(file.fileno(), -1 if length is None else length)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{key} is not in the store {self.root}") from error

    def create(self, key: str, data: Buffer) -> None:
        target = self._path(key)
        if target.exists():
            raise ObjectExists(key)
        self._make_directory(target.parent)
        temporary = self._temporary(data)
        try:
            # Published from here on: the bytes are complete and synced, the link is atomic and exclusive.
            os.link(temporary, target)
        except FileExistsError as error:
            raise ObjectExists(key) from error
        finally:
            os.unlink(temporary)
        if self._durable:
            _sync_directory(target.parent)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        directory, _, _ = prefix.rpartition("/")
        start = self.root / directory if directory else self.root
        for path in _walk(start):
            key = path.relative_to(self.root).as_posix()
            # What gc deletes while it is listed is not there.
            if key.startswith(prefix) and not key.startswith(f"{_TEMPORARY}/") and (found := self.stat(key)):
                yield found

    def names(self, prefix: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self.root / prefix)))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectStat | None:
        try:
            return _stat(key, self._path(key).stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def descriptor(self, key: str) -> int | None:
        try:
            return os.open(self._path(key), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _path(self, key: str) -> Path:
        return self.root / checked(key)

    def _temporary(self, data: Buffer) -> Path:
        """Return a synced file of `data` that has no key yet."""
        directory = self.root / _TEMPORARY
        self._make_directory(directory)
        path = directory / os.urandom(12).hex()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(descriptor, view) :]
            if self._durable:
                os.fsync(descriptor)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        return path

    def _make_directory(self, directory: Path) -> None:
        """Make `directory` durable: a new name is synced in its parent, or a crash could lose the object below it."""
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        if self._durable:
            _sync_directory(directory.parent)

    def _sweep(self) -> None:
        """Remove what killed writers left: unpublished files that no writer can still be filling."""
        oldest_s = time.time() - (_STALE_S if self._durable else _STALE_COPY_S)
        try:
            with os.scandir(self.root / _TEMPORARY) as found:
                stale = [entry.path for entry in found if entry.stat().st_mtime < oldest_s]
        except OSError:
            # Nothing is there, or it cannot be read: whoever uses the store is told what is wrong with it.
            return
        for path in stale:
            # Who may only read the store leaves it to those who write.
            with suppress(OSError):
                os.unlink(path)


def read(descriptor: int, length: int) -> bytes:
    """Read `length` bytes of a file, or all if negative; os.read alone may return less than asked."""
    wanted = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    wanted = max(0, wanted if length < 0 else min(length, wanted))
    first = os.read(descriptor, wanted) if wanted else b""
    if len(first) == wanted:
        return first
    parts = [first]
    while parts[-1] and (missing := wanted - sum(map(len, parts))):
        parts.append(os.read(descriptor, missing))
    return b"".join(parts)


def _stat(key: str, found: os.stat_result) -> ObjectStat:
    return ObjectStat(key=key, size_bytes=found.st_size, modified_s=found.st_mtime)


def _walk(start: Path) -> Iterator[Path]:
    try:
        with os.scandir(start) as found:
            entries = sorted(found, key=lambda entry: entry.name + ("/" if entry.is_dir() else ""))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield Path(entry.path)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
