"""The outside world of operations on runs."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from m5ws.config.settings import LossSettings, RestartSettings, StuckSettings
from m5ws.launch.interface import Launcher
from m5ws.progress import Progress
from m5ws.records.cause import Rule
from m5ws.records.job import Job
from m5ws.records.launch import ALONE, Observing, Place
from m5ws.records.ledger import AnyEvent
from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.tracking.interface import Tracker

if TYPE_CHECKING:
    from m5ws.snapshot.sources.git_history import GitHistory
    from m5ws.supervision.notify import Notifier

Watch = Callable[[str, AnyEvent], bool | None]
"""Called with (rank, event), in the order of each rank. If it returns True, the attempt is stopped."""

CheckNode = Callable[[Run, int, Progress | None], None]
"""Checks this machine for a run on a number of nodes. Raises an error that names the machine and the failed check."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The outside world of operations on runs. `tracker` is None if tracking is disabled.

    `python` starts the ranks: this interpreter, or the interpreter of a rebuilt environment. `observing` are the orders
    for the first rank, which observes its environment. Work directories of attempts are below `work_root`.
    `allow_local` has name patterns of distributions that ranks may import although no snapshot contains them. `history`
    has the commits of the repository around the workspace. The record of a new run gets `user` and `host`.
    """

    repo: Repository
    launcher: Launcher
    observing: Observing
    tracker: Tracker | None
    environment: Mapping[str, str]
    work_root: Path
    python: str = sys.executable
    allow_local: tuple[str, ...] = ()
    history: "GitHistory | None" = None
    user: str | None = None
    host: str | None = None
    keep_work: bool = False
    """Output files stay in the work directories of finished attempts."""
    inexact: Literal["warn", "stop"] = "warn"
    """Effect of an inexact resume: a notice, or a notice and the end of the attempt."""
    inputs: Literal["recorded", "pinned"] = "recorded"
    """Files that the processes of a run may read: all, or pinned files alone."""

    stuck: StuckSettings | None = None
    """Limits of the time without progress. Without them, ranks may wait for ever."""

    restart: RestartSettings = RestartSettings()
    """Restarts after a failure."""

    loss: LossSettings = LossSettings()
    """Rules for the loss."""

    preflight: CheckNode | None = None
    """Called before the input files of an attempt are written, with its run and the number of its nodes."""

    job: Job | None = None
    """The job of an engine that runs this process."""

    place: Place = ALONE
    """The place of this machine among the nodes of the attempts."""

    starts_dir: Path | None = None
    """The folder with the lock of starts on this machine, if it is not `work_root`."""

    files: tuple[Path, int] | None = None
    """The directory of this machine's cache for remote datasets, and its maximum size in bytes."""

    causes: Mapping[str, Rule] = {}
    """Rules of the workspace that find the cause of a failure."""

    notifier: "Notifier | None" = None
    """Sends messages about runs."""

    def sign(self, run: Run) -> Run:
        """Return a new run with the user and the host that start the run, and the time of the store's clock."""
        return msgspec.structs.replace(run, user=self.user, host=self.host, created_s=self.repo.store.now())
