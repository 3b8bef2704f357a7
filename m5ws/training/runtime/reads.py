"""Notes of the files that this process reads outside the known places, and of the hosts that it connects to.

Python reports each event to audit hooks before it happens (https://docs.python.org/3/library/audit_events.html). A hook
stays in forked processes. Files that C code opens, and processes that are not forks, report nothing. The supervisor
computes sizes and digests, so the script waits for none of them.
"""

import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from m5ws.launch import known_places, read_notes
from m5ws.records.launch import Context

_MOST = 10_000
"""The number of paths and hosts that a process notes. A set of millions of paths would take memory from the script."""
_PROBLEMS = (AttributeError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of missing files and unusual arguments. An error of a hook would end the call that the script makes."""


def note_reads(orders: Context, environment: Mapping[str, str]) -> None:
    """Note the reads of this process and of its forks, from now on; in an image, hosts alone. A hook stays for good."""
    places = known_places.find(orders, environment)
    if orders.image is not None:
        places = msgspec.structs.replace(places, system=(os.sep,))  # The pinned image contains them.
    hosts = known_places.hosts(orders, environment)
    notes = ReadNotes(Path(orders.spool_dir) / read_notes.NAME, places, hosts)
    sys.addaudithook(notes.audit)
    os.register_at_fork(before=notes.learn)


class ReadNotes:
    """The notes of one process. The script waits for a look into a set, and once for each new path."""

    def __init__(self, file: Path, places: known_places.Places, hosts: frozenset[str]) -> None:
        self._file, self._hosts = file, hosts
        self._fixed = _below(places.fixed)
        self._own = _below((*places.own, *places.caches))
        self._folders: dict[str, bool | None] = {}
        """Folders with known files. None: of the run's own, in which a link may lead out."""
        self._judged: set[object] = set()
        """Absolute paths that need no second look: the first use of a path decides."""
        self._seen: set[str] = set()
        self._made: set[str] = set()
        self._ports: set[object] = set()
        self._reader = read_notes.NoteReader(file)
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
            "socket.getaddrinfo": self._resolve,
            "socket.connect": self._connect,
        }

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take one event of Python. Raises nothing."""
        handle = self._handlers.get(event)
        if handle is not None:
            try:
                handle(*arguments)
            except _PROBLEMS:
                return

    def learn(self) -> None:
        """Take in the notes of forks. Otherwise the workers of each epoch would write the same notes again."""
        self._seen.update(text for _, text in self._reader.read())

    # --- files ----------------------------------------------------------------------------------------

    def _open(self, path: Any, _mode: object, flags: int) -> None:
        if path in self._judged:
            return
        access = flags & os.O_ACCMODE
        if access == os.O_RDONLY or (access == os.O_RDWR and not flags & os.O_CREAT):
            self._read(path, stat.S_ISREG)
        elif (place := self._place(path)) is not None:
            self._write(place)

    def _list(self, path: Any) -> None:
        place = self._place("." if path is None else path)
        if place is None:
            return
        above = _folder(os.path.realpath(place))
        # The names in a folder above known places are not the run's inputs.
        if not any(known.startswith(above) for known in (*self._own, *self._fixed)):
            self._read(place, stat.S_ISDIR)

    def _make(self, path: Any, *_: object) -> None:
        if (place := self._place(path)) is not None and not os.path.lexists(place):
            self._write(place)

    def _move(self, source: Any, target: Any, *_: object) -> None:
        """A file that the run made stays its own under another name."""
        if (place := self._place(target)) is not None and os.path.realpath(os.fsdecode(source)) in self._made:
            self._write(place)

    def _load(self, name: Any) -> None:
        if name is not None and os.sep in os.fsdecode(name):
            self._read(name, stat.S_ISREG)

    def _execute(self, program: Any, *_: object) -> None:
        if (path := shutil.which(os.fsdecode(program))) is not None:
            self._read(path, stat.S_ISREG)

    def _read(self, path: Any, has_kind: Callable[[int], bool]) -> None:
        if (place := self._place(path)) is not None and has_kind(os.stat(place).st_mode) and self._is_new(place):
            # The name in the work directory means nothing after the attempt.
            is_link = _folder(place).startswith(self._own)
            self._note(read_notes.READ, os.path.realpath(place) if is_link else os.path.normpath(place))
            self._place(place)

    def _write(self, place: str) -> None:
        if self._is_new(place):
            real = os.path.realpath(place)
            self._made.add(real)
            self._note(read_notes.WRITTEN, real)

    def _place(self, path: Any) -> str | None:
        """Return the absolute path of a file that is neither noted nor in a known place; else None."""
        if isinstance(path, int):
            return None
        place = os.fsdecode(path)
        if not os.path.isabs(place):
            place = os.path.join(os.getcwd(), place)
        if place not in self._seen and not self._is_known(place):
            return place
        if place == path and len(self._judged) < _MOST:
            self._judged.add(place)
        return None

    def _is_known(self, place: str) -> bool:
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

    def _resolve(self, host: Any, port: object, *_: object) -> None:
        """A look-up without a port is of a name alone."""
        if host is not None and port not in (None, 0, "0"):
            self._ports.add(str(port))
            self._note_host(os.fsdecode(host))

    def _connect(self, _socket: object, address: object) -> None:
        """An address on a port for which a name was looked up is counted as an address of the name."""
        if isinstance(address, tuple) and len(address) > 1 and str(address[1]) not in self._ports:
            self._note_host(os.fsdecode(address[0]))

    def _note_host(self, host: str) -> None:
        name = host.lower().rstrip(".")
        if name not in self._hosts and not name.startswith("127.") and name not in self._seen and self._is_new(name):
            self._note(read_notes.HOST, name)

    # --- notes ----------------------------------------------------------------------------------------

    def _is_new(self, text: str) -> bool:
        """Count a path or host. Return False if this process has too many of them."""
        if len(self._seen) < _MOST:
            self._seen.add(text)
            return True
        if len(self._seen) == _MOST:
            self._seen.add("")
            self._note(read_notes.MORE)
        return False

    def _note(self, kind: str, text: str = "") -> None:
        try:
            read_notes.append(self._file, kind, text)
        except OSError:  # The disk is full, or the folder is gone: the script continues.
            self._handlers.clear()


def _folder(path: str) -> str:
    return path if path.endswith(os.sep) else path + os.sep


def _below(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_folder, places))
