"""The files and hosts that `[run] inputs = "pinned"` refuses: hosts are refused here, files by the kernel.

The kernel's error has no path if a library in C or Rust reports it, and Python's `glob` reports none. So each refusal
that Python's audit events show (https://docs.python.org/3/library/audit_events.html) is appended to one file
for all processes of the attempt, once a process. Forked workers inherit the hook; other children have the kernel's
refusals alone.
"""

import errno
import ipaddress
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from m5ws.records.launch import REFUSED, Access, Context
from m5ws.training.runtime import isolation

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_OF_FOLDERS = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate")
_NAMES = ("socket.getaddrinfo", "socket.gethostbyname")


class Refusals:
    """Notes what is refused to this process, whose attempt has `access`."""

    def __init__(self, context: Context, access: Access) -> None:
        self._context, self._file = context, Path(context.spool_dir) / REFUSED
        self._read, self._write = _prefixes((*access.read, *access.write)), _prefixes(access.write)
        self._hosts = {*access.hosts, os.environ.get("MASTER_ADDR", "")}
        self._noted: set[tuple[str, str]] = set()
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._open,
            "os.listdir": self._list,
            "os.scandir": self._list,
            "sqlite3.connect": self._change,
            "socket.connect": self._connect,
            **dict.fromkeys(_OF_FOLDERS, self._change),
            **dict.fromkeys(_NAMES, self._resolve),
        }

    def watch(self) -> None:
        """Note refusals from now on, and refuse hosts."""
        resolve = socket.getaddrinfo

        def getaddrinfo(*arguments: Any, **options: Any) -> Any:
            addresses = resolve(*arguments, **options)
            # The name was accepted, or the event had raised an error.
            self._hosts.update(str(address[4][0]) for address in addresses if _is_name(arguments[:1]))
            return addresses

        socket.getaddrinfo = getaddrinfo
        sys.addaudithook(self._hear)

    def search(self, error: BaseException) -> None:
        """Note the files that the failed frames name and that are refused, if nothing was noted before.

        An error of a library in C or Rust has no path.
        """
        if not self._noted:
            for path in dict.fromkeys(_named_paths(error.__traceback__)):
                self._judge("read", path, self._read)

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if (handle := self._handlers.get(event)) is not None:
            handle(*arguments)

    def _open(self, path: object, _mode: object, flags: int) -> None:
        if flags & _WRITING:
            self._judge("write", path, self._write)
        else:
            self._judge("read", path, self._read)

    def _list(self, path: object = None) -> None:
        # Python's import lists each folder of its path, also of the checkout, whose modules have copies.
        if path not in sys.path or isolation.checkout_of(str(path), self._context) is None:
            self._judge("read", path or ".", self._read)

    def _change(self, path: object, *_: object) -> None:
        if path != ":memory:":
            self._judge("write", path, self._write)

    def _judge(self, kind: str, path: object, allowed: tuple[str, ...]) -> None:
        if isinstance(path, str | bytes | os.PathLike) and not (real := _real(os.fsdecode(path))).startswith(allowed):
            real = real.removesuffix(os.sep)
            if kind == "write" or os.path.lexists(real):
                self._note(kind, real)

    def _resolve(self, host: object, *_: object) -> None:
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        if isinstance(name, str) and _is_name((name,)) and name.rstrip(".") not in self._hosts:
            self._refuse(name)

    def _connect(self, connecting: socket.socket, address: Any) -> None:
        if connecting.family not in (socket.AF_INET, socket.AF_INET6) or address[0] in self._hosts:
            return
        if _is_name(address[:1]) or not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
            self._refuse(address[0])

    def _refuse(self, host: str) -> None:
        self._note("connect", host)
        text = f'connection to {host} refused: [run] inputs = "pinned" allows the ranks, the store and MLflow alone'
        raise PermissionError(errno.EACCES, text)

    def _note(self, kind: str, name: str) -> None:
        if (kind, name) not in self._noted:
            self._noted.add((kind, name))
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, json.dumps([kind, name]).encode() + b"\n")
            os.close(descriptor)


def watch(context: Context) -> Refusals | None:
    """Note refusals of this process from now on; return None if the attempt has no limits."""
    if context.access is None:
        return None
    refusals = Refusals(context, context.access)
    refusals.watch()
    return refusals


def _prefixes(places: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{place.rstrip(os.sep)}{os.sep}" for place in places)


def _real(path: str) -> str:
    """Return a path with its links resolved, and a slash at its end."""
    folder, name = os.path.split(os.path.abspath(path))
    file = os.path.join(_real_folder(folder), name)
    return f"{os.path.realpath(file) if os.path.islink(file) else file}{os.sep}"


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _is_name(host: Sequence[object]) -> bool:
    """Return True for the name of a host, False for an address or no host."""
    try:
        ipaddress.ip_address(str(host[0]).partition("%")[0])
    except (IndexError, ValueError):
        return bool(host and host[0])
    return False


def _named_paths(failed: TracebackType | None) -> Iterator[str]:
    """Yield the absolute paths in variables and constants of the frames of an error, the innermost frame first."""
    for frame, _ in reversed(list(traceback.walk_tb(failed))):
        for value in (*frame.f_locals.values(), *frame.f_code.co_consts):
            if isinstance(value, str | os.PathLike) and os.path.isabs(os.fspath(value)):
                yield os.fsdecode(value)
