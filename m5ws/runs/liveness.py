"""Runs that go on, have ended, or died without a word: by their ledgers, and by the engines of their jobs."""

from m5ws.config.settings import Settings
from m5ws.engines import submission
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs.state import RunState


def is_dead(found: RunState, silent_s: float | None, limit_s: float) -> bool:
    """Return True if the newest attempt of a run goes on without a new batch, or its leader was killed.

    `silent_s` is the age of the newest batch of a run that is running.
    """
    reason = found.newest.reason if found.newest is not None else None
    return silent_s > limit_s if silent_s is not None else reason is not None and reason.kind == "supervisor killed"


def has_ended(settings: Settings, repo: Repository, found: RunState) -> bool:
    """Return True if no attempt of a run is alive, and no job begins another attempt."""
    if found.standing in ("running", "finished"):
        return found.standing == "finished"
    is_alive = _job_is_alive(settings, repo, found.run)
    reason = found.newest.reason if found.newest is not None else None
    if is_alive is None and reason is not None:
        # The reason decides without the engine: these are the ends after which a job starts again.
        is_warned = (reason.kind, reason.signal) == ("stopped", "SIGUSR2")
        return not (is_warned or reason.kind in ("node lost", "supervisor killed"))
    return is_alive is False


def _job_is_alive(settings: Settings, repo: Repository, run: str) -> bool | None:
    """Return True if a job that begins attempts of a run waits or runs; None if its engine does not answer here."""
    found = submission.alive(settings, jobs.of_attempts(repo, run))
    return (found.job is not None) if found.is_known or found.job else None
