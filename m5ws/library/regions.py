"""Regions in order of preference: a job of AWS Batch that gets no nodes is submitted to the next queue of its cluster.

The record of a job has the queues that are left, so any machine that reaches the store can go on. The request to cancel
the job comes first. Agents that start late read the request and begin no attempt, so one job at a time trains.
"""

from contextlib import suppress

import msgspec

from m5ws.config.settings import BatchCluster, Settings
from m5ws.engines import submission
from m5ws.engines.interface import EngineUnavailable, JobState
from m5ws.errors import ObjectExists, UnknownSchema
from m5ws.records.job import Cancel, Job
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.workspace import Workspace

_CAPACITY = "CAPACITY:"
"""The first characters of Batch's reasons for a lack of instances
(https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html).
"""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A job in its next queue: its id there, and the queue with its region."""

    job: Job
    id: str
    place: str


def move_on(workspace: Workspace, repo: Repository, run_id: str) -> Moved | None:
    """Submit the newest job of a run to its next queue if the job gets no nodes; return None if nothing changed.

    Raises EngineUnavailable if the next queue does not accept the job: then the job stays in its queue. After an error
    of the submission itself, no job is left.
    """
    job = next(reversed(jobs.of_attempts(repo, run_id)), None)
    if job is None or job.engine != "batch":
        return None
    try:
        engine = submission.engine_of_job(workspace.settings, job)
        settings = msgspec.json.decode(job.settings, type=Settings)
        own = settings.clusters[job.cluster]
        if not isinstance(own, BatchCluster) or not own.elsewhere or jobs.cancel_of_job(repo, job) is not None:
            return None
        found = engine.state(job.name)
    except (EngineUnavailable, UnknownSchema):
        return None
    if not _gets_no_nodes(found, repo.store.now() - _waits_since(repo, job), own.patience_s):
        return None
    first, *rest = own.elsewhere
    place = {"queue": first.queue, "region": first.region, "instance_type": first.instance_type}
    moved = msgspec.structs.replace(own, **place, elsewhere=tuple(rest))
    settings = msgspec.structs.replace(settings, clusters={**settings.clusters, job.cluster: moved})
    named = (settings, job.cluster, job.run, workspace.store_url, job.nodes)
    planned = submission.plan(*named, job.options, name=jobs.next_name(job))
    then = submission.engine_of(moved)
    then.check(planned.request, planned.job.script)
    creator = {"created_s": repo.store.now(), **workspace.creator()}
    attempt = max(ledger.attempts(repo, run_id), default=0)
    # From here on, the job begins no attempt.
    jobs.cancel(repo, msgspec.structs.replace(Cancel(run=run_id, attempt=attempt, jobs=(job.name,)), **creator))
    with suppress(EngineUnavailable):
        engine.cancel(job.name)
    try:
        published = jobs.publish(repo, msgspec.structs.replace(planned.job, **creator))
    except ObjectExists:  # Another machine does the same at this moment.
        return None
    where = f"queue {first.queue}" + (f" of {first.region}" if first.region else "")
    try:
        identifier = then.submit(planned.request, planned.job.script)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            f"job {job.name} was cancelled, and the next job cannot be submitted to {where}: {error}",
            hint=f"`m5ws resume {run_id} --on {job.cluster}` submits another job.",
        ) from error
    return Moved(job=msgspec.structs.replace(published, settings=""), id=identifier, place=where)


def _gets_no_nodes(found: JobState, waited_s: float, patience_s: float) -> bool:
    """Return True if a job waits too long, or if Batch has no instances for it. A queue may end a job for this."""
    if found.reason.startswith(_CAPACITY):
        return found.standing in ("queued", "ended")
    return found.standing == "queued" and waited_s > patience_s


def _waits_since(repo: Repository, job: Job) -> float:
    """Return the time since which a queued job waits: its submission, or the last event of the newest attempt."""
    newest = state.load_newest(repo, job.run).newest
    times = (newest.ended_s, newest.last_s) if newest is not None else ()
    return max(job.created_s, *(each for each in times if each is not None), 0.0)
