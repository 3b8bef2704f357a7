"""Notes of the files that this process reads outside the known places, and of the hosts that it connects to.

Python reports each event to audit hooks before it happens (https://docs.python.org/3/library/audit_events.html). A hook
stays in forked processes. Files that C code opens, and processes that are not forks, report nothing. The supervisor
computes sizes and digests, so the script waits for none of them.

Under `[run] inputs = "pinned"` the kernel refuses these files, and its error may have no path. Then a note is of a
refusal, and hosts are refused here.
"""

import errno
import importlib.util
import os
import re
import shutil
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from m5ws.launch import known_places, read_notes
from m5ws.records.launch import Context
from m5ws.records.reads import HOST, MORE, READ, WRITTEN

_MOST = 10_000
"""The number of paths and hosts that a process notes. A set of millions of paths would take memory from the script."""
_PROBLEMS = (AttributeError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of missing files and unusual arguments. An error of a hook would end the call that the script makes."""
_LOOPBACK = re.compile(r"127(\.\d+){3}")
Places = tuple[str, ...]


class HostRefused(PermissionError):
    """The script may not connect to this host."""


def note_reads(orders: Context, environment: Mapping[str, str]) -> "ReadNotes":
    """Note the reads of this process and of its forks, from now on; in an image, hosts alone. A hook stays for good."""
    if orders.access is not None:
        fixed, own = orders.access.read, orders.access.write
    else:
        places = known_places.find(orders, environment)
        # A pinned image contains all files of a run.
        fixed, own = places.fixed if orders.image is None else (os.sep,), (*places.own, *places.caches)
    notes = ReadNotes(orders, fixed, own, known_places.hosts(orders, environment))
    if orders.access is not None:
        notes.accept_addresses()
    sys.addaudithook(notes.audit)
    os.register_at_fork(before=notes.learn)
    return notes


class ReadNotes:
    """The notes of one process. The script waits for a look into a set, and once for each new path.

    Files in `fixed` places are read without a note, files in `own` places read and written.
    """

    def __init__(self, orders: Context, fixed: Places, own: Places, hosts: frozenset[str]) -> None:
        self._file, self._hosts = os.path.join(orders.spool_dir, read_notes.NAME), set(hosts)
        self._fixed, self._own, self._checkout = _below(fixed), _below(own), _folder(orders.author_dir)
        self._refuses = orders.access is not None
        self._folders: dict[str, bool | None] = {}
        """Folders with known files. None: of the run's own, in which a link may lead out."""
        self._judged: set[object] = set()
        """Absolute paths that need no second look: the first use of a path decides."""
        self._seen: set[str] = set()
        self._made: set[str] = set()
        self._ports: set[object] = set()
        self._noted = 0
        self._reader = read_notes.NoteReader(self._file)
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._open,
            "os.listdir": self._list,
            "os.scandir": self._list,
            "os.mkdir": self._make,
            "os.rename": self._move,
            "ctypes.dlopen": self._load,
            "import": lambda _module, file, *_: self._load(file),
            "subprocess.Popen": self._execute,
            "os.exec": self._execute,
            "os.posix_spawn": self._execute,
            "sqlite3.connect": self._connect_database,
            "socket.getaddrinfo": self._resolve,
            "socket.connect": self._connect,
        }

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take one event of Python. Raises nothing."""
        handle = self._handlers.get(event)
        if handle is not None:
            try:
                handle(*arguments)
            except HostRefused:
                raise
            except _PROBLEMS:
                return

    def learn(self) -> None:
        """Take in the notes of forks. Otherwise the workers of each epoch would write the same notes again."""
        self._seen.update(text for _, text in self._reader.read())

    def search(self, error: BaseException) -> None:
        """Note refused files that the frames of an error name, if nothing was noted before."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for frame in frames if self._refuses and not self._seen else ():
            for value in (*frame.f_locals.values(), *frame.f_code.co_consts):
                if isinstance(value, str | os.PathLike) and os.path.isabs(value) and os.path.exists(value):
                    self._read(value, bool)

    # --- files ----------------------------------------------------------------------------------------

    def _open(self, path: Any, _mode: object, flags: int) -> None:
        if path in self._judged:
            return
        access = flags & os.O_ACCMODE
        is_read = access == os.O_RDWR and not flags & os.O_TRUNC and not self._refuses and os.path.exists(path)
        if access == os.O_RDONLY or is_read:
            self._read(_source(path), stat.S_ISREG)
        else:
            self._write(path)

    def _connect_database(self, name: Any) -> None:
        path = os.fsdecode(name)
        if path.startswith("file:"):  # https://www.sqlite.org/uri.html
            path = unquote(urlsplit(path).path)
        if path and ":memory:" not in path:
            self._open(path, None, os.O_RDWR | os.O_CREAT)

    def _list(self, path: Any) -> None:
        place = self._place("." if path is None else path)
        # Python's import lists folders of the checkout, whose modules have copies.
        if place is None or (place in sys.path and _folder(place).startswith(self._checkout)):
            return
        above = _folder(os.path.realpath(place))
        # The names in a folder above known places are not the run's inputs.
        if self._refuses or not any(known.startswith(above) for known in (*self._own, *self._fixed)):
            self._read(place, stat.S_ISDIR)

    def _make(self, path: Any, *_: object) -> None:
        if not os.path.lexists(path):
            self._write(path)

    def _move(self, source: Any, target: Any, *_: object) -> None:
        """A file that the run made stays its own under another name."""
        if os.path.realpath(os.fsdecode(source)) in self._made:
            self._write(target)

    def _load(self, name: Any) -> None:
        if name is not None and os.sep in os.fsdecode(name):
            self._read(name, stat.S_ISREG)

    def _execute(self, program: Any, *_: object) -> None:
        if (path := shutil.which(os.fsdecode(program))) is not None:
            self._read(path, stat.S_ISREG)

    def _read(self, path: Any, has_kind: Callable[[int], bool]) -> None:
        if (place := self._place(path)) is not None and has_kind(os.stat(place).st_mode) and self._is_new(place):
            # The name in the work directory means nothing after the attempt.
            is_link = _folder(place).startswith(self._own) or os.pardir in place
            self._note(READ, os.path.realpath(place) if is_link else os.path.normpath(place))
            self._place(place)

    def _write(self, path: Any) -> None:
        place = self._place(path, is_written=True)
        if place is not None and self._is_new(place):
            real = os.path.realpath(place)
            self._made.add(real)
            self._note(WRITTEN, real)

    def _place(self, path: Any, *, is_written: bool = False) -> str | None:
        """Return the absolute path of a file that is neither noted nor in a known place; else None."""
        if isinstance(path, int):
            return None
        place = os.fsdecode(path)
        if not os.path.isabs(place):
            place = os.path.join(os.getcwd(), place)
        if place not in self._seen and not self._is_known(place, is_written and self._refuses):
            return place
        if place == path and len(self._judged) < _MOST:
            self._judged.add(place)
        return None

    def _is_known(self, place: str, is_refused: bool) -> bool:
        """`is_refused`: the kernel refuses a write to a fixed place."""
        if is_refused:
            return _folder(os.path.realpath(place)).startswith(self._own)
        folder = os.path.dirname(place)
        if folder not in self._folders:
            self._folders[folder] = self._judge(folder)
        known = self._folders[folder]
        if known:
            return True
        if os.path.islink(place):
            return self._judge(os.path.realpath(place)) is not False
        # A place may be a single file.
        return known is None or _folder(place) in self._fixed or _folder(place) in self._own

    def _judge(self, folder: str) -> bool | None:
        """Return True for a place that no run writes to, None for a place of the run's own, False for another."""
        if os.pardir not in folder and _folder(folder).startswith(self._fixed):
            return True
        real = _folder(os.path.realpath(folder))
        return True if real.startswith(self._fixed) else None if real.startswith(self._own) else False

    # --- hosts ----------------------------------------------------------------------------------------

    def accept_addresses(self) -> None:
        """Remember the addresses of accepted names. S3 answers each question with other addresses."""
        resolve = socket.getaddrinfo

        def getaddrinfo(*arguments: Any, **options: Any) -> Any:
            addresses = resolve(*arguments, **options)  # The event raised an error for a refused name.
            self._hosts.update(str(address[4][0]) for address in addresses)
            return addresses

        socket.getaddrinfo = getaddrinfo

    def _resolve(self, host: Any, port: object, *_: object) -> None:
        """A look-up without a port is of a name alone."""
        if host is not None and (self._refuses or port not in (None, 0, "0")):
            self._ports.add(str(port))
            self._use_host(os.fsdecode(host))

    def _connect(self, _socket: object, address: object) -> None:
        """An address on a port for which a name was looked up is counted as an address of the name."""
        if isinstance(address, tuple) and len(address) > 1 and (self._refuses or str(address[1]) not in self._ports):
            self._use_host(os.fsdecode(address[0]))

    def _use_host(self, host: str) -> None:
        name = host.lower().rstrip(".")
        if name in self._hosts or _LOOPBACK.fullmatch(name):
            return
        if name not in self._seen and self._is_new(name):
            self._note(HOST, name)
        if self._refuses:
            raise HostRefused(errno.EACCES, f'{name} is no host of the run ([run] inputs = "pinned")')

    # --- notes ----------------------------------------------------------------------------------------

    def _is_new(self, text: str) -> bool:
        """Count a path or host. Return False if this process has too many of them."""
        self._noted += 1
        if self._noted <= _MOST:
            self._seen.add(text)
        elif self._noted == _MOST + 1:
            self._note(MORE)
        return self._noted <= _MOST

    def _note(self, kind: str, text: str = "") -> None:
        try:
            read_notes.append(self._file, kind, text)
        except OSError:  # The disk is full, or the folder is gone: the script continues.
            self._handlers.clear()


def _source(path: Any) -> Any:
    """Return the source of compiled Python code, and any other path unchanged."""
    if not isinstance(path, str) or not path.endswith(".pyc"):
        return path
    with suppress(ValueError):  # No name that Python gives to compiled code.
        source = importlib.util.source_from_cache(path)
        return source if os.path.exists(source) else path
    return path


def _folder(path: str) -> str:
    return path if path.endswith(os.sep) else path + os.sep


def _below(places: Places) -> Places:
    return tuple(map(_folder, places))
