"""A store in a directory, with the standard library alone.

A single `link(2)` of a complete, synced file makes an object appear under its key. Readers see all of an object or
nothing, whenever a writer is killed. The link fails if the key exists, on every POSIX file system. No file under a key
is ever opened for writing.

The directory may come from another person, so no file outside it is read, written or deleted. Only plain files that are
not behind a link are objects.
"""

import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from m5ws.access import PathDenied
from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists, UsageError
from m5ws.records.base import OBJECT_BYTES
from m5ws.store import permissions
from m5ws.store.interface import FORMAT, Buffer, ObjectStat, checked
from m5ws.waits import waits

_TEMPORARY = "tmp"
_STALE_S = 24 * 3600.0
_STALE_COPY_S = 3600.0
_WRITE_BYTES = 128 * 2**10
"""Linux caches a larger write in larger blocks of memory, which a virtual machine may have to get from its host.
512 MiB then took 0.9 s instead of 0.4 s. With smaller writes, threads wait for Python's lock too often.
"""
_MOVE = "m5ws creates only plain files and folders in a store. Move anything else out of the store."


class StoreGone(M5Error):
    """The directory contained a store before, and does not now. A write would go to another place."""

    exit_code = 3
    hint = "Check that its file system is mounted, then run the command again. Published data is complete."


@contextmanager
def _naming(root: Path, key: str) -> Iterator[None]:
    """Raise each error of the block with the key and the store, not with the name of a temporary file.

    A denied access is raised with the file or folder that denies it.
    """
    try:
        yield
    except PathDenied:
        raise
    except PermissionError as error:
        raise PathDenied(Path(error.filename2 or error.filename or root)) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{key} in store {root}") from error


class LocalStore:
    """`ObjectStore` on a directory, which is created with the first object.

    A cache need not be `durable`, since its objects can be fetched again. Nothing is then synced, and a torn file after
    a power failure fails its checksum. Once its format was read or written, the directory is known to be a store. If
    the format is missing later, operations raise StoreGone instead of reporting an empty store or creating a new store.
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
        with waits.wait(self.url, f"reading {key}", length or 0):
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
        def write(descriptor: int) -> None:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(descriptor, view[:_WRITE_BYTES]) :]

        self.create_file(key, memoryview(data).nbytes, write)

    def create_file(self, key: str, size_bytes: int, write: Callable[[int], None]) -> None:
        """Publish the bytes that `write` writes to a descriptor, as `create`. An error of `write` publishes nothing."""
        with waits.wait(self.url, f"writing {key}", size_bytes):
            self._check_there()
            target = self._path(key)
            if os.path.lexists(target):
                raise ObjectExists(key)
            temporary = self._path(f"{_TEMPORARY}/{os.urandom(12).hex()}")
            with _naming(self.root, key):
                self._make_directory(temporary.parent)
                descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
                try:
                    permissions.set_mode(self.root, descriptor)
                    write(descriptor)
                    self._publish(temporary, descriptor, target, key)
                finally:
                    os.close(descriptor)
                    os.unlink(temporary)
            self._known = self._known or key == FORMAT

    def _publish(self, temporary: Path, descriptor: int, target: Path, key: str) -> None:
        """Link a complete file under its key. Raises ObjectExists if the key exists."""
        self._make_directory(target.parent)
        if self._durable:
            os.fsync(descriptor)
        try:
            # Published from here on: the bytes are complete and synced, and the link is atomic and exclusive.
            os.link(temporary, target)
        except FileExistsError as error:
            raise ObjectExists(key) from error
        if self._durable:
            _sync_directory(target.parent)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        directory, _, _ = prefix.rpartition("/")
        self._check_there()
        if not self._is_inside(directory):
            return
        with _naming(self.root, prefix):
            for path in _walk(self.root / directory):
                key = _text(path.relative_to(self.root).as_posix())
                if key.startswith(prefix) and not key.startswith(f"{_TEMPORARY}/"):
                    # gc can delete an object while it is listed.
                    with suppress(FileNotFoundError):
                        yield _stat(key, path.lstat())

    def names(self, prefix: str) -> tuple[str, ...]:
        directory = prefix.rstrip("/")
        with waits.wait(self.url, f"listing {prefix}"):
            if not self._is_inside(directory):
                return ()
            try:
                with _naming(self.root, prefix), os.scandir(self.root / directory) as scanned:
                    return tuple(sorted(_text(entry.name) for entry in scanned if _holds(entry)))
            except (FileNotFoundError, NotADirectoryError):
                self._check_there()
                return ()

    def delete(self, key: str) -> None:
        with _naming(self.root, key):
            self._path(key).unlink(missing_ok=True)

    def stat(self, key: str) -> ObjectStat | None:
        try:
            with _naming(self.root, key):
                return _stat(key, self._path(key).lstat())
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            return None

    def now(self) -> float:
        # A new file has the time of the file server.
        folder = self.root / _TEMPORARY
        with _naming(self.root, _TEMPORARY):
            self._make_directory(folder)
            with tempfile.TemporaryFile(dir=folder) as new:
                return os.fstat(new.fileno()).st_mtime

    def descriptor(self, key: str) -> int | None:
        with suppress(CorruptObject):
            return self._open(key)
        return None

    def _open(self, key: str) -> int | None:
        """Open the file under a key without blocking, or return None.

        Raises CorruptObject for anything but a plain file.
        """
        try:
            with _naming(self.root, key):
                descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # A symbolic link, or a socket.
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise self._foreign(key) from error
            raise
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= OBJECT_BYTES:
            return descriptor
        os.close(descriptor)
        raise self._foreign(key)

    def _check_there(self) -> None:
        """Raise StoreGone if the directory was a store before.

        Its file system was unmounted, or the folder was moved.
        """
        if self._known:
            try:
                with _naming(self.root, FORMAT):
                    os.lstat(self.root / FORMAT)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StoreGone(f"the store {self.root} no longer exists") from error

    def _foreign(self, key: str) -> CorruptObject:
        return CorruptObject(f"{key} in the store {self.root} is not a plain file of m5ws", hint=_MOVE)

    def _path(self, key: str) -> Path:
        """Return the path of a key. Raises UsageError, and CorruptObject if the path is behind a link."""
        directory = checked(key).rpartition("/")[0]
        if not self._is_inside(directory):
            raise CorruptObject(f"{directory} in the store {self.root} is behind a symbolic link", hint=_MOVE)
        return self.root / key

    def _is_inside(self, directory: str) -> bool:
        """Return True if a key's folder is, or would be, in this directory, not elsewhere by its name or a link."""
        if not directory or directory in self._folders:
            return True
        with suppress(UsageError), _naming(self.root, directory):
            outer = checked(directory).rpartition("/")[0]
            path = self.root / directory
            if self._is_inside(outer) and not path.is_symlink():
                # Links are searched once: the threat is a directory that was received with links in it.
                if path.is_dir():
                    self._folders.add(directory)
                return True
        return False

    def _make_directory(self, directory: Path) -> None:
        """Create `directory` durably. Its name is synced in its parent; otherwise a crash could lose the objects
        below.
        """
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        if directory.is_relative_to(self.root) and directory != self.root:
            permissions.make_folder(self.root, directory)
        else:
            self._check_there()
            directory.mkdir(exist_ok=True)
        if self._durable:
            _sync_directory(directory.parent)

    def _sweep(self) -> None:
        """Delete the files of killed writers: unpublished files older than any write in progress."""
        oldest_s = time.time() - (_STALE_S if self._durable else _STALE_COPY_S)
        try:
            if not self._is_inside(_TEMPORARY):
                return
            with os.scandir(self.root / _TEMPORARY) as scanned:
                stale = [entry.path for entry in scanned if entry.stat(follow_symlinks=False).st_mtime < oldest_s]
        except OSError:
            # The directory is missing or unreadable. The next operation reports the error.
            return
        for path in stale:
            # A user without write access leaves these files to others.
            with suppress(OSError):
                os.unlink(path)


def read(descriptor: int, length: int) -> bytes:
    """Read `length` bytes of a file, or the rest if negative. os.read alone may return less."""
    wanted = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    wanted = max(0, wanted if length < 0 else min(length, wanted))
    first = os.read(descriptor, wanted) if wanted else b""
    if len(first) == wanted:
        return first
    parts = [first]
    while parts[-1] and (missing := wanted - sum(map(len, parts))):
        parts.append(os.read(descriptor, missing))
    return b"".join(parts)


def _stat(key: str, status: os.stat_result) -> ObjectStat:
    return ObjectStat(key=key, size_bytes=status.st_size, modified_s=status.st_mtime)


def _text(name: str) -> str:
    """Return a name as printable text. Bytes that are not UTF-8 are escaped; such a name is not a key."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def _holds(entry: "os.DirEntry[str]") -> bool:
    """Return True if an object is at or below an entry. A kill can leave an empty folder."""
    if not entry.is_dir(follow_symlinks=False):
        return True
    try:
        with os.scandir(entry.path) as inner:
            return any(map(_holds, inner))
    except FileNotFoundError:
        return False


def _walk(start: Path) -> Iterator[Path]:
    try:
        with os.scandir(start) as scanned:
            entries = sorted(
                scanned, key=lambda entry: entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
            )
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
