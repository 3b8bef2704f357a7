"""Regions in order of preference: a job of AWS Batch without nodes, or without a sign in the store, moves elsewhere.

It is submitted to the next queue of its cluster. The record of a job has the queues that are left, so any machine that
reaches the store can go on. The request to cancel the job comes first. Agents that start late read the request and
begin no attempt. The next attempt fences an attempt in a region that is cut off.
"""

from contextlib import suppress

import msgspec

from m5ws.config.settings import BatchCluster, Settings
from m5ws.engines import submission
from m5ws.engines.interface import Engine, EngineUnavailable, JobState
from m5ws.errors import ObjectExists, UnknownSchema
from m5ws.records.job import Cancel, Job
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import liveness, state
from m5ws.workspace import Workspace

_CAPACITY = "CAPACITY:"
"""The first characters of Batch's reasons for a lack of instances
(https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable.html).
"""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A job in its next queue: its id there, the queue with its region, and why it left the queue before."""

    job: Job
    id: str
    place: str
    why: str


def move_on(workspace: Workspace, repo: Repository, run_id: str) -> Moved | None:
    """Submit the newest job of a run to its next queue if its region is without nodes, or silent; else return None.

    Raises EngineUnavailable if the next queue does not accept the job: then the job stays in its queue. After an error
    of the submission itself, no job is left.
    """
    job = next(reversed(jobs.of_attempts(repo, run_id)), None)
    if job is None or job.engine != "batch":
        return None
    try:
        engine = submission.engine_of_job(workspace.settings, job)
        settings = msgspec.json.decode(job.settings, type=Settings)
    except UnknownSchema:
        return None
    own = settings.clusters[job.cluster]
    if not isinstance(own, BatchCluster) or not own.elsewhere or jobs.is_cancelled(repo, job):
        return None
    if (why := _reason_to_move(workspace, repo, job, engine, own.patience_s)) is None:
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
    cancel = Cancel(run=run_id, attempt=attempt, jobs=(job.name,), next=planned.job.name)
    # From here on, the job begins no attempt.
    jobs.cancel(repo, msgspec.structs.replace(cancel, **creator))
    with suppress(EngineUnavailable):
        engine.cancel(job.name)
    try:
        published = jobs.publish(repo, msgspec.structs.replace(planned.job, **creator))
    except ObjectExists:  # Another machine does the same at this moment.
        return None
    if jobs.is_cancelled(repo, job):  # A user has cancelled the run meanwhile.
        jobs.cancel(repo, msgspec.structs.replace(cancel, jobs=(published.name,), next=None, **creator))
        return None
    where = f"queue {first.queue}" + (f" of {first.region}" if first.region else "")
    try:
        identifier = then.submit(planned.request, planned.job.script)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            f"job {job.name} was cancelled, and the next job cannot be submitted to {where}: {error}",
            hint=f"`m5ws resume {run_id} --on {job.cluster}` submits another job.",
        ) from error
    return Moved(job=msgspec.structs.replace(published, settings=""), id=identifier, place=where, why=why)


def _reason_to_move(workspace: Workspace, repo: Repository, job: Job, engine: Engine, patience_s: float) -> str | None:
    """Return why a job leaves its queue: no instances, or neither an event nor an end for too long. Else return None.

    A queue may end a job that lacks instances. A region that is cut off may not answer, or report that the job runs.
    """
    try:
        found = engine.state(job.name)
    except EngineUnavailable:
        found = JobState(standing="unknown")
    if found.reason.startswith(_CAPACITY) and found.standing in ("queued", "ended"):
        return "got no nodes"
    newest = state.load_newest(repo, job.run)
    attempt = newest.newest.attempt if newest.newest is not None else 0
    silent_s = repo.store.now() - max(job.created_s, ledger.newest_s(repo, job.run, attempt))
    if silent_s <= patience_s or liveness.has_ended(workspace.settings, repo, newest):
        return None
    return "got no nodes" if found.standing == "queued" else f"was silent for {silent_s:.0f} s"
