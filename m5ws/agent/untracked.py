"""Ended runs and verdicts of this machine that the tracker lacks. Processes of their own deliver them."""

import logging
from collections.abc import Iterator
from pathlib import Path

from m5ws.agent.delivery import DELIVERED
from m5ws.agent.recovery import VERDICT
from m5ws.errors import M5Error
from m5ws.tracking.interface import TRACKED, UNTOLD, Delivering, Tracker

_SHARE = 100
_LONGEST_S = 60.0
_log = logging.getLogger(__name__)


def patience_s(duration_s: float) -> float:
    """Return the longest wait for the tracker at the end of an attempt: a hundredth of the attempt, at most a minute.

    A batch system ends all processes with the command, and so the delivery of a run that it started.
    """
    return min(duration_s / _SHARE, _LONGEST_S)


def show_verdict(tracker: Tracker, home: Path, run: str, *, is_followed: bool = False) -> None:
    """Show the verdict of a replay, or the joint verdict on a run, in the tracker, in the background.

    `is_followed`: a process still delivers the run. It shows the verdict too, unless it has marked the run as tracked.
    """
    directory = home / "runs" / run
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / UNTOLD).touch()
        if not is_followed or any(directory.glob(f"*/{TRACKED}")):
            tracker.catch_up(run)
    except (M5Error, OSError) as error:
        _log.warning("the tracker lacks the verdict of run %s; `m5ws ui` sends it again: %s", run, error)


def catch_up(tracker: Tracker, home: Path) -> list[str]:
    """Deliver the ended runs and verdicts that the tracker lacks. Return the problem that remains, if there is one."""
    for delivery in _deliveries(tracker, sorted((home / "runs").glob("*"))):
        if not delivery.close(_LONGEST_S):
            # The rest would fail in the same way, each after the same time.
            return [delivery.problem or "the tracker does not answer; the delivery continues in the background"]
    return []


def _deliveries(tracker: Tracker, run_dirs: list[Path]) -> Iterator[Delivering]:
    for run_dir in run_dirs:
        attempt = max(run_dir.glob("[0-9][0-9][0-9][0-9]"), default=None)
        is_untracked = attempt is not None and (attempt / DELIVERED).exists() and not (attempt / TRACKED).exists()
        if is_untracked or ((run_dir / UNTOLD).exists() and not (run_dir / VERDICT).exists()):
            yield tracker.catch_up(run_dir.name)
