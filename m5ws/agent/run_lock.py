"""The lock of a run on this machine, and the mark of an attempt's own directory.

A supervisor holds the file `lock`, and launched processes hold `ranks` until the last process ends.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from m5ws import locks
from m5ws.errors import UsageError
from m5ws.records import codec
from m5ws.records.ledger import NODE, NodeStarted
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.repository.repository import Repository

RANKS_S = 150.0
"""After a kill of the supervisor, the ranks get the deadline of their last checkpoint, and 20 s."""
_FORK_S = 1.0
_OWNER = "owner"
"""Name of a file in an attempt's directory with its own inode. In a copied directory the number does not match."""

Notify = Callable[[str], None]
"""Called with a line about a wait that has begun."""


class RunAlive(UsageError):
    """The run is alive on this machine."""


@contextmanager
def lock_run(run_dir: Path, wait_s: float = RANKS_S, notify: Notify | None = None) -> Iterator[None]:
    """Lock a run: no other supervisor and no rank of an earlier attempt is alive. Raises RunAlive.

    The ranks of a killed supervisor get `wait_s` seconds to end, and `notify` a line about them. Processes that are
    launched in the block inherit the second lock.
    """
    run = run_dir.name
    with open(run_dir / "lock", "a") as supervisor, open(run_dir / "ranks", "a") as ranks:
        # A child that another thread starts holds the lock too, from its fork to its exec.
        if not locks.acquire(supervisor.fileno(), min(wait_s, _FORK_S)):
            raise RunAlive(f"run {run} is running", hint=f"`m5ws logs {run} -f` prints its output.")
        if not locks.acquire(ranks.fileno(), min(wait_s, _FORK_S)):
            _wait_for_ranks(ranks.fileno(), run_dir, wait_s, notify)
        os.set_inheritable(ranks.fileno(), True)
        yield


def _wait_for_ranks(descriptor: int, run_dir: Path, wait_s: float, notify: Notify | None) -> None:
    """Lock a run's ranks after the ranks of an earlier attempt have ended. Raises RunAlive after `wait_s` seconds."""
    alive = f"ranks of an earlier attempt of run {run_dir.name} are still alive"
    pids = " ".join(map(str, locks.list_processes(run_dir / "ranks")))
    alive += f": process {pids} on {socket.gethostname()}" if pids else ""
    if notify is not None and wait_s > _FORK_S:
        notify(f"{alive}; waiting at most {wait_s:.0f} s for their end")
    if not locks.acquire(descriptor, wait_s):
        hint = f"Wait, or end the processes: `kill -9 {pids}`." if pids else "Wait, or kill the processes."
        raise RunAlive(alive, hint=hint)


def mark_directory(directory: Path) -> None:
    """Mark the directory of a new attempt as the place of its spools."""
    with (directory / _OWNER).open("w") as file:
        file.write(str(os.fstat(file.fileno()).st_ino))


def is_own(repo: Repository, run: str, attempt: int, directory: Path) -> bool:
    """Return True if the spools of the attempt's leader are in this directory."""
    return own_node(repo, run, attempt, directory) == 0


def own_node(repo: Repository, run: str, attempt: int, directory: Path) -> int | None:
    """Return the number of the node of the stored attempt whose spools are in this directory; None if there is none.

    Another machine may have begun the attempt after it was planned here, or the directory may be a copy.
    """
    spooled = SpoolReader(directory / "spool" / f"{NODE}.spool").read()
    begin = ledger.decode_event(spooled[0]) if spooled else None
    node = begin.node if isinstance(begin, NodeStarted) else 0
    stored = ledger.first(repo, run, attempt, node) if begin is not None else None
    mark = directory / _OWNER
    is_place = mark.exists() and mark.read_text() == str(mark.stat().st_ino)
    return node if stored is not None and is_place and codec.encode(stored) == spooled[0] else None
