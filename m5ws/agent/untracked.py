"""Ended runs and verdicts of this machine that the tracker lacks. A process of its own delivers them.

Each command that delivers ledgers starts this process, so a page is complete soon after its ledger.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from m5ws import locks
from m5ws.agent.delivery import DELIVERED
from m5ws.agent.recovery import VERDICT
from m5ws.errors import M5Error
from m5ws.tracking.interface import FOLLOWED, TRACKED, UNTOLD, Tracker

_LONGEST_S = 60.0
_log = logging.getLogger(__name__)


def show_verdict(tracker: Tracker, home: Path, run: str, *, is_followed: bool = False) -> None:
    """Show the verdict or joint verdict on a run, or its newest cause, in the tracker, in the background.

    `is_followed`: a process still delivers the run. It shows the verdict too, unless it has marked the run as tracked.
    """
    directory = home / "runs" / run
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / UNTOLD).touch()
        if not is_followed or any(directory.glob(f"*/{TRACKED}")):
            tracker.catch_up([run])
    except (M5Error, OSError) as error:
        _log.warning("the tracker lacks the verdict of run %s; %s sends it again: %s", run, tracker.remedy, error)


def waiting(home: Path) -> list[str]:
    """Return the ended runs with records or verdicts that the tracker lacks."""
    return [run_dir.name for run_dir in sorted((home / "runs").glob("*")) if _is_waiting(run_dir)]


def catch_up(tracker: Tracker, home: Path) -> list[str]:
    """Deliver the ended runs and verdicts that the tracker lacks. Return the problem that remains, if there is one."""
    if not (run_ids := waiting(home)):
        return []
    delivery = tracker.catch_up(run_ids)
    if delivery.close(_LONGEST_S * len(run_ids)):
        return []
    return [delivery.problem or "the tracker does not answer; the delivery continues in the background"]


def deliver(open_tracker: Callable[[], Tracker | None], home: Path) -> None:
    """Start a process that delivers all records that the tracker lacks, unless one runs. Takes no time."""
    if locks.is_held(home / FOLLOWED):
        return
    run_ids = [run for run in waiting(home) if not locks.is_held(home / "runs" / run / FOLLOWED)]
    try:
        if run_ids and (tracker := open_tracker()) is not None:
            tracker.catch_up(run_ids)
    except OSError as error:
        _log.warning("the delivery of %d runs to the tracker cannot be started: %s", len(run_ids), error)


def _is_waiting(run_dir: Path) -> bool:
    attempt = max(run_dir.glob("[0-9][0-9][0-9][0-9]"), default=None)
    is_untracked = attempt is not None and (attempt / DELIVERED).exists() and not (attempt / TRACKED).exists()
    return is_untracked or ((run_dir / UNTOLD).exists() and not (run_dir / VERDICT).exists())
