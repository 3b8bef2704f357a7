"""Ended runs and verdicts of this machine that the tracker lacks. They are delivered later."""

import logging
from pathlib import Path

from m5ws.agent.delivery import DELIVERED, TRACKED
from m5ws.agent.recovery import VERDICT
from m5ws.errors import M5Error
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.tracking.interface import Tracker

UNTOLD = "untold"
"""Name of a file in a run's directory. The file exists if the tracker lacks the run's verdict or joint verdict."""

TRACKING_S = 60.0
_log = logging.getLogger(__name__)


def show_verdict(repo: Repository, tracker: Tracker, home: Path, run: str) -> None:
    """Show the verdict of a replay, or the joint verdict on a run, in the tracker; later if it does not answer."""
    try:
        (home / "runs" / run).mkdir(parents=True, exist_ok=True)
        (home / "runs" / run / UNTOLD).touch()
        problems = deliver_verdicts(repo, tracker, home)
    except OSError as error:
        problems = [str(error)]
    for problem in problems:
        _log.warning("%s; the next verdict, or `m5ws ui`, sends it again", problem)


def pending_verdicts(home: Path) -> list[Path]:
    """Return the marks of verdicts that the tracker lacks."""
    return sorted((home / "runs").glob(f"*/{UNTOLD}"))


def deliver_verdicts(repo: Repository, tracker: Tracker, home: Path) -> list[str]:
    """Write the missing verdicts to the pages of all their runs. Return the problems that remain."""
    for mark in pending_verdicts(home):
        run = mark.parent.name
        if (mark.parent / VERDICT).exists():
            continue
        try:
            verdict = runs.verdict(repo, runs.load(repo, run))
            for name in (run,) if verdict is None else (verdict.run, *verdict.replays):
                tracker.refresh(name)
            mark.unlink(missing_ok=True)
        except (M5Error, OSError) as error:
            # The others would fail in the same way, each after the same time.
            return [f"the tracker lacks the verdict of run {run}: {error}"]
    return []


def catch_up(tracker: Tracker, home: Path) -> list[str]:
    """Deliver ended runs of this machine to the tracker, if it lacks them. Return the problems that remain."""
    problems = []
    for run_dir in sorted((home / "runs").glob("*")):
        attempt = max(run_dir.glob("[0-9][0-9][0-9][0-9]"), default=None)
        if attempt is None or (attempt / TRACKED).exists() or not (attempt / DELIVERED).exists():
            continue
        following = tracker.catch_up(run_dir.name)
        if following.close(timeout_s=TRACKING_S):
            (attempt / TRACKED).touch()
        else:
            problems.append(following.problem)
    return problems
