"""Jobs of runs, `jobs/<run>/<name>`, and requests to cancel runs, `cancels/<run>/<time>-<nonce>`, each written once.

A cancel is a request in the store, so that it reaches an attempt from any machine. Writer and reader cannot both miss
each other: an attempt publishes its start first and then reads the requests; a request names the jobs of the run, and
is published before its writer reads the state of the run. A job that takes the place of another job is published before
its writer reads the requests again, and a canceller reads the jobs again after its request.
"""

import os

import blake3

from m5ws import secret_gate
from m5ws.records.job import Cancel, Job
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "jobs/"
CANCELS = "cancels/"


def prefix(run_id: str) -> str:
    """Return the key prefix of a run's jobs."""
    return f"{PREFIX}{run_id}/"


def new_name(run_id: str) -> str:
    """Return a new name of a job: of the run, and different from the names of its other jobs."""
    return f"m5ws-{run_id}-{os.urandom(4).hex()}"


def next_name(job: Job) -> str:
    """Return the name of the job that takes the place of a job. There is one: two submitters make no two jobs."""
    return f"m5ws-{job.run}-{blake3.blake3(job.name.encode()).hexdigest()[:8]}"


def publish(repo: Repository, job: Job) -> Job:
    """Publish a job, and return it as stored, with secrets masked."""
    return bindings.create(repo.store, f"{prefix(job.run)}{job.name}", secret_gate.masked(job))


def load(repo: Repository, run_id: str, name: str) -> Job:
    """Return a job of a run. Raises NotFound, CorruptObject, Misplaced, UnknownSchema."""
    return bindings.record(repo.store, f"{prefix(run_id)}{name}", Job)


def of_run(repo: Repository, run_id: str) -> list[Job]:
    """Return the jobs of a run, oldest first. Raises as `load`."""
    return sorted(bindings.records(repo.store, prefix(run_id), Job).values(), key=lambda job: job.created_s)


def of_attempts(repo: Repository, run_id: str) -> list[Job]:
    """Return the jobs that begin attempts of a run, oldest first, without jobs that run a command. Raises as `load`."""
    return [job for job in of_run(repo, run_id) if not job.command]


def cancel(repo: Repository, request: Cancel) -> Cancel:
    """Publish a request to cancel a run, and return it as stored."""
    prefix = f"{CANCELS}{request.run}/"
    return bindings.create_at(repo.store, prefix, request.created_s, secret_gate.masked(request))


def cancels(repo: Repository, run_id: str) -> list[Cancel]:
    """Return the requests to cancel a run, oldest first. Raises as `load`."""
    return list(bindings.records(repo.store, f"{CANCELS}{run_id}/", Cancel).values())


def cancel_of_job(repo: Repository, job: Job) -> Cancel | None:
    """Return a request to begin no attempt in a job, or None. Raises as `load`."""
    return next((each for each in cancels(repo, job.run) if job.name in each.jobs), None)


def is_moving(repo: Repository, job: Job) -> bool:
    """Return True if the newest job of a run moves elsewhere, where no job is published yet. Raises as `load`."""
    return cancel_of_job(repo, job) is not None and not is_cancelled(repo, job)


def is_cancelled(repo: Repository, job: Job) -> bool:
    """Return True if a request ends a job for good, and does not only move it elsewhere. Raises as `load`."""
    return any(each.next is None for each in cancels(repo, job.run) if job.name in each.jobs)


def cancel_of_attempt(repo: Repository, run_id: str, attempt: int, job: Job | None) -> Cancel | None:
    """Return a request to end an attempt, which may be in a job, or None. Raises as `load`."""
    own = next((each for each in cancels(repo, run_id) if each.attempt >= attempt), None)
    return own or (cancel_of_job(repo, job) if job is not None else None)
