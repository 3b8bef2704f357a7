"""Use files outside by every way, and print the result of each as JSON: "done", "refused", or another error.

Arguments: a folder outside, an inherited descriptor of a file there, and `torch` for uses that import torch. The
current directory is the work directory.
"""

import ctypes
import errno
import json
import mmap
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any


def fopen(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    if not libc.fopen(os.fsencode(path), b"r"):
        raise OSError(ctypes.get_errno(), "fopen")


def mapped(path: str) -> bytes:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:]


def tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)


def memmap(path: str) -> Any:
    import numpy as np

    return np.memmap(path, mode="r")


class Rows:
    """A data set whose rows are bytes of a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> int:
        return Path(self.path).read_bytes()[row]


def loader(path: str, start: str) -> Any:
    from torch.utils.data import DataLoader

    return list(DataLoader(Rows(path), num_workers=1, multiprocessing_context=start))  # type: ignore[arg-type]


def child(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EACCES if "ermission denied" in done.stderr else errno.EIO, done.stderr)


def link(path: str, name: str) -> str:
    os.symlink(path, name)
    return name


def reopened(path: str) -> bytes:
    """Read a file by a descriptor that names it and cannot read it."""
    descriptor = os.open(path, os.O_PATH)
    return Path(f"/proc/self/fd/{descriptor}").read_bytes()


def fifo(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def reads(outside: Path, descriptor: int) -> dict[str, Callable[[], Any]]:
    file, tokens = str(outside / "file"), str(outside / "tokenizer.json")
    return {
        "open": lambda: open(file).read(),
        "os.open": lambda: os.open(file, os.O_RDONLY),
        "listdir": lambda: os.listdir(outside),
        "fopen": lambda: fopen(file),
        "mmap": lambda: mapped(file),
        "tokenizers": lambda: tokenizer(tokens),
        "memmap": lambda: memmap(file),
        "subprocess": lambda: child("cat", file),
        "shell": lambda: child("sh", "-c", f". {file}"),
        "python child": lambda: child(sys.executable, "-c", f"open({file!r})"),
        "link of a file": lambda: open(link(file, "a")).read(),
        "link of a folder": (Path(link(str(outside), "b")) / "file").read_bytes,
        "dots": lambda: open(os.path.relpath(file)).read(),
        "descriptor": lambda: os.read(descriptor, 10),
        "fifo": lambda: fifo(str(outside / "fifo")),
        "/proc/self/fd": lambda: reopened(file),
        "/proc/self/root": lambda: open(f"/proc/self/root{file}").read(),
        "/proc/PPID/root": lambda: open(f"/proc/{os.getppid()}/root{file}").read(),
        "execute": lambda: subprocess.run([str(outside / "program")], check=True),
        "sqlite": lambda: sqlite3.connect(str(outside / "new.db")).execute("create table a (b)"),
        "hard link": lambda: os.link(file, "c"),
        "move in": lambda: os.rename(outside / "moved", "d"),
    }


def loaders(outside: Path) -> dict[str, Callable[[], Any]]:
    """Return uses that import torch: loaders of a file outside, and of this file."""
    file = str(outside / "file")
    return {
        "forked loader": lambda: loader(file, "fork"),
        "spawned loader": lambda: loader(file, "spawn"),
        "own loader": lambda: loader(__file__, "fork"),
    }


def writes(outside: Path) -> dict[str, Callable[[], Any]]:
    file = outside / "file"
    return {
        "write": lambda: (outside / "written").write_text("x"),
        "append": lambda: open(file, "a"),
        "truncate": lambda: os.truncate(outside / "cut", 1),
        "mkdir": (outside / "made").mkdir,
        "symlink": lambda: (outside / "linked").symlink_to("file"),
        "remove": (outside / "removed").unlink,
        "rmdir": (outside / "empty").rmdir,
        "rename": lambda: (outside / "renamed").rename(outside / "renamed.txt"),
        "mkfifo": lambda: os.mkfifo(outside / "piped"),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(outside / "socket")),
    }


def own() -> dict[str, Callable[[], Any]]:
    """Return uses of places that a run may use."""
    return {
        "work directory": lambda: (Path("own").write_text("x"), Path("own").rename("renamed"), os.listdir()),
        "moved to another folder": lambda: (Path("e").mkdir(), Path("f").write_text(""), os.rename("f", "e/f")),
        "system": lambda: (open("/etc/passwd").read(), os.listdir("/proc/self"), open("/proc/cpuinfo").read()),
        "devices": lambda: (open("/dev/null", "w").write("x"), open("/dev/urandom", "rb").read(1)),
        "shared memory": lambda: (
            Path(f"/dev/shm/m5ws-{os.getpid()}").touch(),
            os.unlink(f"/dev/shm/m5ws-{os.getpid()}"),
        ),
        "listener": lambda: Listener(family="AF_UNIX").close(),
        "compiler": lambda: child("sh", "-c", "ls /usr/bin >/dev/null"),
    }


def result(use: Callable[[], Any]) -> str:
    try:
        use()
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        refused = (
            getattr(error, "errno", None) in (errno.EACCES, errno.EBADF, errno.EXDEV) or "ermission denied" in text
        )
        return "refused" if refused or isinstance(error, sqlite3.OperationalError) else text
    return "done"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    uses = {**reads(folder, int(sys.argv[2])), **writes(folder), **own()}
    if sys.argv[3:]:
        uses |= loaders(folder)
    print(json.dumps({name: result(use) for name, use in uses.items()}))
