"""A store in a directory, with the standard library alone.

An object appears under its key by one `link(2)` of a complete, synced file: readers see it whole or not
at all, whatever was killed when, and the link fails if the key is taken, on every POSIX file system.
Nothing under a key is ever opened for writing. Whoever made the directory, nothing outside it is read, written or
removed: what is no plain file, or lies behind a link, is no object.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists, UsageError
from m5ws.records.base import OBJECT_BYTES
from m5ws.store.interface import FORMAT, Buffer, ObjectStat
from m5ws.store.keys import checked

_TEMPORARY = "tmp"
_STALE_S = 24 * 3600.0
_STALE_COPY_S = 3600.0
_MOVE = "m5ws makes plain files and folders in a store: move what else there is away."


class StoreGone(M5Error):
    """A directory that held a store does not hold it now: what would be written there would be in another place."""

    exit_code = 3
    hint = "Is its file system mounted? When it is back, what was not written is written then, and what was is whole."


@dataclass
class Draft:
    """A file of a store that has no key yet."""

    path: Path
    descriptor: int
    size_bytes: int = 0

    def write(self, data: memoryview) -> int:
        """Write some of `data` after what is there, and return how many bytes. Raises OSError."""
        count = os.write(self.descriptor, data)
        self.size_bytes += count
        return count


class LocalStore:
    """`ObjectStore` on a directory, which is made with the first object.

    A store whose objects can be had again (a cache) need not be `durable`: nothing is synced, and a torn file
    after a power failure is found by its digest. Once its format was read or written, the directory is a store, and an
    operation that does not find that there any more raises StoreGone, instead of calling it empty or making it anew.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root
        self._durable = durable
        self._folders: set[str] = set()
        self._known = False
        self._sweep()

    @property
    def url(self) -> str:
        return str(self.root)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        descriptor = self._open(key)
        if descriptor is None:
            self._check_there()
            raise NotFound(f"{key} is not in the store {self.root}")
        self._known = self._known or key == FORMAT
        try:
            if start:
                os.lseek(descriptor, start, os.SEEK_SET)
            return read(descriptor, -1 if length is None else length)
        finally:
            os.close(descriptor)

    def create(self, key: str, data: Buffer) -> None:
        self._check_there()
        if os.path.lexists(self._path(key)):
            raise ObjectExists(key)
        with self.draft() as draft:
            view = memoryview(data).cast("B")
            while view:
                view = view[draft.write(view) :]
            self.publish(draft, key)

    @contextmanager
    def draft(self) -> Iterator["Draft"]:
        """Yield a new file without a key, to be filled and published; it is gone at the end."""
        path = self._path(f"{_TEMPORARY}/{os.urandom(12).hex()}")
        self._make_directory(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        try:
            yield Draft(path, descriptor)
        finally:
            os.close(descriptor)
            os.unlink(path)

    def publish(self, draft: "Draft", key: str) -> None:
        """Give a draft, whose bytes are complete, its key. Raises ObjectExists if the key is taken."""
        target = self._path(key)
        self._make_directory(target.parent)
        if self._durable:
            os.fsync(draft.descriptor)
        try:
            # Published from here on: the bytes are complete and synced, the link is atomic and exclusive.
            os.link(draft.path, target)
        except FileExistsError as error:
            raise ObjectExists(key) from error
        if self._durable:
            _sync_directory(target.parent)
        self._known = self._known or key == FORMAT

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        directory, _, _ = prefix.rpartition("/")
        self._check_there()
        if not self._is_inside(directory):
            return
        for path in _walk(self.root / directory):
            key = _text(path.relative_to(self.root).as_posix())
            if key.startswith(prefix) and not key.startswith(f"{_TEMPORARY}/"):
                # What gc deletes while it is listed is not there.
                with suppress(FileNotFoundError):
                    yield _stat(key, path.lstat())

    def names(self, prefix: str) -> tuple[str, ...]:
        directory = prefix.rstrip("/")
        if not self._is_inside(directory):
            return ()
        try:
            with os.scandir(self.root / directory) as found:
                return tuple(sorted(_text(entry.name) for entry in found if _holds(entry)))
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return ()

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectStat | None:
        try:
            return _stat(key, self._path(key).lstat())
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return None

    def descriptor(self, key: str) -> int | None:
        with suppress(CorruptObject):
            return self._open(key)
        return None

    def _open(self, key: str) -> int | None:
        """Open the file under a key, or return None. Raises CorruptObject for anything else; no FIFO is waited for."""
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # A link, or a socket.
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise self._foreign(key) from error
            raise
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size <= OBJECT_BYTES:
            return descriptor
        os.close(descriptor)
        raise self._foreign(key)

    def _check_there(self) -> None:
        """Raise StoreGone if this was a store, and is none now: a file system was unmounted, or a folder moved."""
        if self._known:
            try:
                os.lstat(self.root / FORMAT)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StoreGone(f"the store {self.root} is gone") from error

    def _foreign(self, key: str) -> CorruptObject:
        return CorruptObject(f"{key} in the store {self.root} is not a file that m5ws wrote", hint=_MOVE)

    def _path(self, key: str) -> Path:
        """Return where a key is. Raises CorruptObject if that is behind a link, UsageError."""
        directory = checked(key).rpartition("/")[0]
        if not self._is_inside(directory):
            raise CorruptObject(f"{directory} in the store {self.root} lies behind a link", hint=_MOVE)
        return self.root / key

    def _is_inside(self, directory: str) -> bool:
        """Return whether a key's folder is, or would be, in this directory: not elsewhere by its name or by a link."""
        if not directory or directory in self._folders:
            return True
        with suppress(UsageError):
            outer = checked(directory).rpartition("/")[0]
            path = self.root / directory
            if self._is_inside(outer) and not path.is_symlink():
                # Links are looked for once: what is guarded against came with the directory.
                if path.is_dir():
                    self._folders.add(directory)
                return True
        return False

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
        if not self._is_inside(_TEMPORARY):
            return
        oldest_s = time.time() - (_STALE_S if self._durable else _STALE_COPY_S)
        try:
            with os.scandir(self.root / _TEMPORARY) as found:
                stale = [entry.path for entry in found if entry.stat(follow_symlinks=False).st_mtime < oldest_s]
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


def _text(name: str) -> str:
    """Return a name as text that can be shown; one that is not UTF-8 is no key, and comes with its bytes escaped."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def _holds(found: "os.DirEntry[str]") -> bool:
    """Return whether an object is at or below an entry: a kill can leave a folder without any."""
    if not found.is_dir(follow_symlinks=False):
        return True
    try:
        with os.scandir(found.path) as inner:
            return any(map(_holds, inner))
    except FileNotFoundError:
        return False


def _walk(start: Path) -> Iterator[Path]:
    try:
        with os.scandir(start) as found:
            entries = sorted(found, key=lambda entry: entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""))
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
