"""Runs that go on, have ended, or died without a word: by their ledgers, and by the engines of their jobs."""

from contextlib import suppress

import msgspec

from m5ws.config.settings import Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable
from m5ws.errors import UnknownSchema
from m5ws.records.job import Job
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.runs.state import RunState

_SILENT_S = 120.0
"""Agents deliver events at least once a minute."""
_UNSUBMITTED_S = 86_400.0
"""An engine remembers the end of a job for longer: a job that it does not know was never submitted."""


def is_dead(found: RunState, silent_s: float | None, limit_s: float) -> bool:
    """Return True if the newest attempt of a run goes on without a new batch, or its leader was killed.

    `silent_s` is the age of the newest batch of a run that is running.
    """
    reason = found.newest.reason if found.newest is not None else None
    return silent_s > limit_s if silent_s is not None else reason is not None and reason.kind == "supervisor killed"


def look(settings: Settings, repo: Repository, found: RunState) -> tuple[bool, str]:
    """Return True if no attempt of a run is alive, and no job begins another attempt; and a note about its engine."""
    submitted, newest = jobs.of_attempts(repo, found.run), found.newest
    is_running = found.standing == "running"
    if found.standing == "finished" or (is_running and not _is_silent(repo, found, submitted)):
        return not is_running, ""
    if submitted and jobs.is_moving(repo, submitted[-1]) and not is_overtaken(repo, found, submitted[-1]):
        return False, ""
    # A cancelled job begins no attempt, whatever its engine reports.
    able = submitted if is_running else [job for job in submitted if jobs.cancel_of_job(repo, job) is None]
    job, problem = find_alive(settings, repo, able)
    if not is_running:
        return job is None and not (problem and _may_begin(repo, found, able[-1])), problem
    # The attempt may have ended before its job did.
    if newest is None or job is not None or problem or state.load_newest(repo, found.run).standing != "running":
        return False, problem
    again = f"`m5ws resume {found.run} --on {submitted[-1].cluster} --take-over` continues the run"
    return True, f"attempt {newest.attempt} has no end, and no job of the run waits or runs: {again}"


def _is_silent(repo: Repository, found: RunState, submitted: list[Job]) -> bool:
    """Return True if an attempt of one of these jobs has had no event for a while, by the store's clock."""
    newest = found.attempts[-1]
    silent_s = repo.store.now() - ledger.newest_s(repo, found.run, newest.attempt)
    return silent_s > _SILENT_S and any(job.name == newest.job_name for job in submitted)


def find_alive(settings: Settings, repo: Repository, submitted: list[Job]) -> tuple[Job | None, str]:
    """Ask the engines for the newest of these jobs that waits or runs, and return the problem of the newest job's."""
    problem = ""
    for job in reversed(submitted):
        try:
            standing = submission.engine_of_job(settings, job).state(job.name).standing
            if standing in ("queued", "running") or (standing == "unknown" and is_unsubmitted(repo, job)):
                return job, ""
        except (EngineUnavailable, UnknownSchema) as error:
            problem = problem or (f"{job.cluster} does not answer here: {error}" if job is submitted[-1] else "")
    return None, problem


def is_unsubmitted(repo: Repository, job: Job) -> bool:
    """Return True if a job that its engine does not know waits for its submission.

    AWS Batch lists a job some seconds after its submission.
    """
    is_new = repo.store.now() - job.created_s < _UNSUBMITTED_S
    return job.engine == "batch" and is_new and jobs.cancel_of_job(repo, job) is None and not has_begun(repo, job)


def is_overtaken(repo: Repository, found: RunState, job: Job) -> bool:
    """Return True if the newest attempt began after a job was published, and without a job: the run goes on there."""
    newest = found.newest
    return newest is not None and newest.job_name is None and _is_later(repo, job, newest.attempt)


def has_begun(repo: Repository, job: Job) -> bool:
    """Return True if a job has begun an attempt, or an attempt without a job began after its publication."""
    starts = (ledger.started(repo, job.run, attempt) for attempt in ledger.attempts(repo, job.run))
    names = ((each.job_name, each.attempt) for each in starts if each is not None)
    return any(name == job.name or (name is None and _is_later(repo, job, attempt)) for name, attempt in names)


def _is_later(repo: Repository, job: Job, attempt: int) -> bool:
    """Return True if an attempt began after a job was published, both by the store's clock."""
    return ledger.began_s(repo, job.run, attempt) > job.created_s


def _may_begin(repo: Repository, found: RunState, job: Job) -> bool:
    """Return True if a job whose engine does not answer may begin its first attempt, or start again after an attempt.

    SIGTERM may come from a user, or from an engine that starts the job again.
    """
    if found.newest is None or (reason := found.newest.reason) is None or not has_begun(repo, job):
        return not has_begun(repo, job)
    with suppress(msgspec.MsgspecError):
        if found.standing == "failed" and msgspec.json.decode(job.settings, type=Settings).run.restart.max:
            return True
    is_told = reason.kind == "stopped" and reason.signal in ("SIGUSR2", "SIGTERM")
    return is_told or reason.kind in ("node lost", "supervisor killed")
