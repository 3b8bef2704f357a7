"""Regions in order of preference: a job of AWS Batch without nodes, or without a sign in the store, moves elsewhere.

It is submitted to the next queue of its cluster. The record of a job has the queues that are left, so any machine that
reaches the store can go on. The request to cancel the job comes first. Agents that start late read the request and
begin no attempt. The next attempt fences an attempt in a region that is cut off.

The request names the next job, whose name and queue follow from the record of the job. So whoever looks next completes
a move whose mover was killed: it publishes the next job, or a job after a published job that its queue does not know.
The publisher of a job alone submits it, once: Batch would make another job of each request for a name.
"""

from contextlib import suppress

import msgspec

from m5ws.config.settings import BatchCluster, BatchQueue, Settings
from m5ws.engines import submission
from m5ws.engines.interface import Engine, EngineUnavailable, JobRequest, JobState
from m5ws.engines.submission import Submission
from m5ws.errors import ObjectExists, UnknownSchema
from m5ws.records.job import Cancel, Job
from m5ws.repository.ledger import ledger
from m5ws.repository.references import jobs
from m5ws.repository.repository import Repository
from m5ws.runs import liveness, state
from m5ws.runs.state import RunState
from m5ws.workspace import Workspace

_CAPACITY = "CAPACITY:"
"""The beginning of Batch's reasons for a lack of instances. After its queue has ended a job, other words are before it
(https://docs.aws.amazon.com/batch/latest/userguide/job_stuck_in_runnable_capacity.html).
"""
_UNKNOWN = JobState(standing="unknown")
_SUBMITTED_S = 120.0
"""After this time, Batch lists a job whose submitter was not killed."""


def move_on(workspace: Workspace, repo: Repository, run_id: str) -> str | None:
    """Submit the newest job of a run to its next queue if its region is without nodes, or silent, and return a note.

    Complete a move, or a submission, that was killed or lost. Raises EngineUnavailable if no next queue accepts the
    job: then the job stays in its queue, or a later call submits the next job.
    """
    job, run = next(reversed(jobs.of_attempts(repo, run_id)), None), state.load_newest(repo, run_id)
    if job is None or job.engine != "batch" or jobs.is_cancelled(repo, job):
        return None
    if run.standing == "finished" or liveness.is_overtaken(repo, run, job):
        return None
    found, is_begun = None, jobs.is_moving(repo, job)
    try:
        engine = submission.engine_of_job(workspace.settings, job)
        settings = msgspec.json.decode(job.settings, type=Settings)
        own = settings.clusters[job.cluster]
        found = engine.state(job.name)
    except UnknownSchema:
        return None
    except EngineUnavailable:
        pass  # The region may be cut off.
    assert isinstance(own, BatchCluster)
    why = "left its queue" if is_begun else own.elsewhere and _reason_to_move(workspace, repo, job, run, found, own)
    queues = (*enumerate(own.elsewhere, 1),)
    if not why or not queues:
        is_late = repo.store.now() - job.created_s > _SUBMITTED_S
        if not is_begun and not (is_late and found == _UNKNOWN and liveness.is_unsubmitted(repo, job)):
            return None
        why, stay = "was not submitted", BatchQueue(queue=own.queue, region=own.region, instance_type=own.instance_type)
        queues = ((0, stay),)
    planned, moved = _planned(workspace, job, settings, own, queues)
    then = submission.engine_of(moved)
    creator = {"created_s": repo.store.now(), **workspace.creator()}
    attempt = max(ledger.attempts(repo, run_id), default=0)
    cancel = Cancel(run=run_id, attempt=attempt, jobs=(job.name,), next=planned.job.name)
    if not is_begun:
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
    return _submit(repo, published, then, moved, why)


def _planned(
    workspace: Workspace, job: Job, settings: Settings, own: BatchCluster, queues: tuple[tuple[int, BatchQueue], ...]
) -> tuple[Submission, BatchCluster]:
    """Return the next job and its cluster, in the first of these queues that takes it. Raises EngineUnavailable."""
    problems = []
    for number, queue in queues:
        moved = msgspec.structs.replace(own, **msgspec.structs.asdict(queue), elsewhere=own.elsewhere[number:])
        changed = msgspec.structs.replace(settings, clusters={**settings.clusters, job.cluster: moved})
        named = (changed, job.cluster, job.run, workspace.store_url, job.nodes)
        planned = submission.plan(*named, job.options, name=jobs.next_name(job))
        try:
            submission.engine_of(moved).check(planned.request, planned.job.script)
        except EngineUnavailable as error:
            problems.append(error)
        else:
            return planned, moved
    raise problems[0]


def _submit(repo: Repository, job: Job, engine: Engine, own: BatchCluster, why: str) -> str | None:
    identifier = engine.submit(JobRequest(name=job.name, run=job.run, nodes=job.nodes, agent=()), job.script)
    if jobs.is_cancelled(repo, job):  # Its canceller found no job in the queue.
        with suppress(EngineUnavailable):
            engine.cancel(job.name)
        return None
    return f"the job {why}: it is now job {identifier} in queue {own.queue} of {own.region}"


def _reason_to_move(
    workspace: Workspace, repo: Repository, job: Job, run: RunState, found: JobState | None, own: BatchCluster
) -> str | None:
    """Return why a job leaves its queue: no instances, or neither an event nor an end for too long. Else return None.

    A queue may end a job that lacks instances. A region that is cut off may not answer, or report that the job runs.
    """
    found = found or _UNKNOWN
    if _CAPACITY in found.reason and found.standing in ("queued", "ended"):
        return "got no nodes"
    attempt = run.newest.attempt if run.newest is not None else 0
    silent_s = repo.store.now() - max(job.created_s, ledger.newest_s(repo, job.run, attempt))
    has_ended, _ = liveness.look(workspace.settings, repo, run)
    is_unbegun = found.standing == "ended" and not liveness.has_begun(repo, job)
    if has_ended and (run.standing == "running" or is_unbegun):
        return "ended without a record of it in the store"
    if silent_s <= own.patience_s or has_ended:
        return None
    return "got no nodes" if found.standing == "queued" else f"was silent for {silent_s:.0f} s"
