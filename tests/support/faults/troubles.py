"""Troubles of a store during a save: unreachable, full, slow, or without access.

A directory is disturbed by means of the machine, an S3 server by a proxy before it.
"""

import contextlib
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore
from tests.support.network.fault_plan import Settings
from tests.support.network.proxies import FaultProxy
from tests.support.stores.passing_store import PassingStore

TROUBLES = ("away", "full", "denied", "slow")
_NOBODY = 65534
_SIZE_BYTES = 16 * 2**20
_SLOW_S = 0.15
_RATES = {
    "away": {"reset_before": 1.0},
    "full": {"full": 1.0},
    "denied": {"denied": 1.0},
    "slow": {"drip": 0.2, "slow_down": 0.1},
}


class Directory:
    """A store in a directory, on a small file system of its own if mounts are allowed."""

    def __init__(self, folder: Path, trouble: str) -> None:
        self.root = folder / "file-system" / "store"
        self.root.parent.mkdir()
        self._trouble = trouble
        self._shut = False

    @property
    def url(self) -> str:
        return str(self.root)

    def opened(self) -> ObjectStore:
        return PassingStore(LocalStore(self.root), self._before) if self._trouble == "slow" else LocalStore(self.root)

    def _before(self, operation: str, _key: str) -> None:
        if self._shut and operation == "create":
            time.sleep(_SLOW_S)

    def begin(self) -> None:
        """Start the trouble."""
        self._shut = True
        if self._trouble == "away":
            self.root.rename(self.root.with_name("unmounted"))
        elif self._trouble == "full":
            _fill(self._filler)
        elif self._trouble == "denied":
            # The superuser has access to everything, so the test becomes another user for a while.
            self.root.chmod(0)
            if os.geteuid() == 0:
                # For good: tests that run at the same time share the upper folders.
                for folder in _own(self.root):
                    folder.chmod(folder.stat().st_mode | 0o011)
                os.seteuid(_NOBODY)

    def end(self) -> None:
        """End the trouble. Anything written during it would now be in another place."""
        if not self._shut:
            return
        self._shut = False
        if self._trouble == "away":
            assert not self.root.exists(), "the store was created again while it was unreachable"
            self.root.with_name("unmounted").rename(self.root)
        elif self._trouble == "full":
            self._filler.unlink()
        elif self._trouble == "denied":
            if os.getuid() == 0:
                os.seteuid(0)
            self.root.chmod(0o755)

    @property
    def _filler(self) -> Path:
        return self.root.with_name("filler")


class Server:
    """A store on an S3 server, through a proxy."""

    def __init__(self, proxy: FaultProxy, trouble: str, opened: Callable[[], ObjectStore]) -> None:
        self._proxy = proxy
        self._trouble = trouble
        self.opened = opened

    def begin(self) -> None:
        self._proxy.change(Settings(rates=_RATES[self._trouble], seed=7, drip_bytes_s=4096))

    def end(self) -> None:
        self._proxy.quiet()


@contextlib.contextmanager
def file_system(folder: Path, inodes: int = 0) -> Iterator[bool]:
    """Mount a small file system at a folder, if that is allowed; yield True if it is mounted. 0 inodes: no limit."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES},nr_inodes={inodes}", "tmpfs", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


def _own(path: Path) -> list[Path]:
    """Return the folders above a path that other users may not enter."""
    return [folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH]


def _fill(filler: Path) -> None:
    """Write until the file system is full."""
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    room = os.statvfs(filler)
    assert room.f_bavail == 0
