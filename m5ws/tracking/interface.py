"""Interfaces of an experiment tracker."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from m5ws.progress import Progress

Points = frozenset[tuple[int, str]]
"""Distinct values with their steps: a metric's as `float.hex()`, a parameter's as text at step 0."""
Fetch = Callable[[Path], Path]
"""Copies an artifact into an empty folder, and returns its path. Raises M5Error."""


class LoggedResults(msgspec.Struct, frozen=True, kw_only=True):
    """All that a script logged to the tracker itself, by name. Artifacts of one name may be of several tracked runs."""

    metrics: Mapping[str, Points] = {}
    parameters: Mapping[str, Points] = {}
    artifacts: Mapping[str, tuple[Fetch, ...]] = {}


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run's records that the tracker lacked, its page there if it has one, and refused records."""

    run: str
    page: str | None
    steps: int
    models: int
    datasets: int
    refused: tuple[str, ...] = ()


LOGGED = "logged"
"""Name of a file in an attempt's directory. The file exists if the script began a run in the tracker itself."""
TRACKED = "tracked"
"""Name of a file in an attempt's directory. The file exists if the tracker has all of the run."""
FOLLOWED = "followed"
"""Name of a file in a run's directory, and in the workspace's. A process that delivers to the tracker locks it."""
UNTOLD = "untold"
"""Name of a file in a run's directory. The file exists if the tracker lacks a verdict on the run, or its cause."""


class Delivering(Protocol):
    """A process that delivers a run or verdicts to a tracker. It cannot fail the run, and survives its caller."""

    def wake(self) -> None:
        """Announce new events in the run's ledger. Without this call, nothing is read."""

    def close(self, timeout_s: float) -> bool:
        """Announce the end of the run. Return True if all of it is delivered within `timeout_s` seconds.

        A delivery that takes longer goes on in the background.
        """

    @property
    def problem(self) -> str:
        """The missing data with the reason; empty if there is no error so far."""


class Tracker(Protocol):
    """Shows runs in another tool (MLflow). It follows the ledger, and is never a source of truth."""

    def announce(self) -> None:
        """Let processes of ranks that use an embedded tracker wait until it is ready. Takes no time. Raises OSError."""

    def migrate(self) -> None:
        """Prepare an embedded tracker. Fast if it is ready. Raises M5Error."""

    def environment(self) -> dict[str, str]:
        """Return the variables by which a script's own logging uses the same tracker."""

    def follow(self, run: str) -> Delivering:
        """Deliver a run's ledger as it grows."""

    def catch_up(self, runs: Sequence[str]) -> Delivering:
        """Deliver the ledgers of ended runs that are not tracked, and their verdicts that are untold."""

    @property
    def remedy(self) -> str:
        """The command that delivers all missing records, in backticks, and the variables that it needs."""

    def refresh(self, run: str) -> None:
        """Show a run's published notes and verdicts on its page. Raises M5Error if the tracker does not answer."""

    def sync(self, run: str, *, dry_run: bool, progress: Progress | None) -> SyncReport:
        """Deliver a whole run, and return the numbers of records that the tracker lacked. `dry_run` changes nothing.

        Raises M5Error.
        """

    def logged(self, run: str) -> LoggedResults:
        """Return the results that the script of a run logged itself. Raises M5Error."""

    def ui_url(self, port: int) -> str:
        """Return the address of the tracker's UI, served by `ui_argv(port)` or by its server."""

    def ui_page(self) -> str:
        """Return the part of the UI's address, after `ui_url`, that opens the runs of the experiment; empty without it.

        Raises M5Error if the tracker does not answer.
        """

    def ui_argv(self, port: int) -> tuple[str, ...]:
        """Return the command that serves the UI on this machine's loopback; empty if there is a server."""
