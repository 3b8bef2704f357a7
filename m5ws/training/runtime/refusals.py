"""Refusals of `[run] inputs = "pinned"`: files are refused by the kernel and noted here, hosts are refused here.

The kernel's error has no path if a library in C or Rust reports it, and Python's `glob` reports none. So each refusal
that Python's audit events show (https://docs.python.org/3/library/audit_events.html) is appended to one file for all
processes of the attempt, once a process. Forked workers inherit the hook, and other children do not.
"""

import errno
import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m5ws.records.launch import REFUSED, Access, Context, open_log
from m5ws.training.runtime import isolation

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_LISTS = frozenset({"os.listdir", "os.scandir"})
_LOOPBACK = re.compile(r"127(\.\d+){3}")
_RESOLUTIONS = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


class Refusals:
    """Notes all that is refused to this process, if its attempt has limits."""

    def __init__(self, context: Context) -> None:
        access = context.access or Access(read=(), write=())
        self._is_limited, self._checkout = context.access is not None, context.author_dir
        self._file = Path(context.spool_dir) / REFUSED
        write = tuple(f"{place.rstrip(os.sep)}{os.sep}" for place in access.write)
        self._places = {"read": (*write, *(f"{place.rstrip(os.sep)}{os.sep}" for place in access.read)), "write": write}
        self._hosts = {*access.hosts, os.environ.get("MASTER_ADDR", "")}
        self._noted: set[tuple[str, str]] = set()

    def watch(self) -> None:
        """Note refusals from now on, and refuse hosts."""
        if not self._is_limited:
            return
        resolve = socket.getaddrinfo

        def getaddrinfo(*arguments: Any, **options: Any) -> Any:
            addresses = resolve(*arguments, **options)  # The event raised an error for a refused name.
            self._hosts.update(str(address[4][0]) for address in addresses)
            return addresses

        socket.getaddrinfo = getaddrinfo
        sys.addaudithook(self._hear)

    def search(self, error: BaseException) -> None:
        """Note refused files that the frames of an error name, if no refusal was noted before."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for frame in frames if self._is_limited and not self._noted else ():
            for value in (*frame.f_locals.values(), *frame.f_code.co_consts):
                if isinstance(value, str | os.PathLike) and os.path.isabs(value):
                    self._judge("read", value)

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if event == "open":
            self._judge("write" if arguments[2] & _WRITING else "read", arguments[0])
        elif event in _LISTS:
            # Python's import lists folders of the checkout, whose modules have copies.
            path = arguments[0] or "."
            if path not in sys.path or not str(path).startswith(self._checkout):
                self._judge("read", path)
        elif event == "sqlite3.connect" and arguments[0] != ":memory:":
            self._judge("write", arguments[0])
        elif event in _RESOLUTIONS:
            self._check_host(arguments[0])
        elif event == "socket.connect" and arguments[0].family in (socket.AF_INET, socket.AF_INET6):
            self._check_host(arguments[1][0])

    def _judge(self, kind: str, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            real = _real(os.fsdecode(path))
            if not f"{real}{os.sep}".startswith(self._places[kind]) and (kind == "write" or os.path.lexists(real)):
                self._note(kind, real)

    def _check_host(self, host: str | bytes | None) -> None:
        name = os.fsdecode(host or "")
        if name not in self._hosts and not _LOOPBACK.fullmatch(name):
            self._note("connect", name)
            raise PermissionError(errno.EACCES, f'{name} is no host of the run ([run] inputs = "pinned")')

    def _note(self, kind: str, name: str) -> None:
        if (kind, name) not in self._noted:
            self._noted.add((kind, name))
            with open(self._file, "ab", opener=open_log) as file:
                file.write(json.dumps([kind, name]).encode() + b"\n")


def _real(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    file = os.path.join(isolation.real_folder(folder), name)
    return os.path.realpath(file) if os.path.islink(file) else file
