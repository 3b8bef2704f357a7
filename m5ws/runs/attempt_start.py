"""The start of an attempt: its work directory, its input files, and the event that fences earlier attempts."""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from m5ws.environment import attempt_environments, drift
from m5ws.errors import Fenced, ObjectExists
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.environment import Observed
from m5ws.records.launch import LocalInstall
from m5ws.records.ledger import OTHER_ENVIRONMENT, AttemptStarted, Notice
from m5ws.records.run import Run
from m5ws.records.snapshot import Snapshot
from m5ws.repository import notes, runs, snapshots
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import SpoolWriter
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import unrecorded
from m5ws.runs.run import AttemptPlan
from m5ws.runs.work_directories import WorkDirectory
from m5ws.snapshot import local_installs


def assign_directory(plan: AttemptPlan, work: WorkDirectory) -> AttemptPlan:
    """Return the plan with a work directory. Processes start there, and see no other current directory."""
    seen, request = str(work.seen), plan.request
    request = msgspec.structs.replace(
        request,
        cwd=seen,
        mount=work.mount,
        environment=request.environment | {"PWD": seen},
        unset=(*request.unset, "OLDPWD"),
    )
    return msgspec.structs.replace(plan, request=request, context=msgspec.structs.replace(plan.context, work_dir=seen))


def list_local_installs(
    plan: AttemptPlan, observed: Observed, image: str | None, allowed: Sequence[str]
) -> AttemptPlan:
    """Return the plan with the distributions that no snapshot contains. `allowed` has patterns of their names.

    The pinned `image` pins its distributions.
    """
    is_pinned = image is not None and observed.facts.get("container.image") == image
    origins = {} if is_pinned else observed.origins or {}
    refused = local_installs.local(origins, allowed)
    installs = tuple(
        LocalInstall(name=name, kind=origin.kind, url=origin.url, allowed=name not in refused)
        for name, origin in local_installs.local(origins, ()).items()
    )
    return msgspec.structs.replace(plan, context=msgspec.structs.replace(plan.context, local_installs=installs))


def refuse_stale(repo: Repository, plan: AttemptPlan) -> None:
    """Raise Fenced if the attempt has begun after it was planned: its number and checkpoint are taken."""
    if plan.attempt in ledger.attempts(repo, plan.run.id):
        raise _fenced(plan)


def _fenced(plan: AttemptPlan) -> Fenced:
    return Fenced(f"attempt {plan.attempt} of run {plan.run.id} has begun elsewhere", hint="Try again.")


def materialise_inputs(repo: Repository, snapshot: Snapshot, work: Path, progress: Progress | None) -> None:
    """Write the snapshot's files to a work directory."""
    parts = dict.fromkeys(snapshot.trees.values())
    located = [trees.located(repo.objects, repo.locations, tree) for tree in parts]
    materialise(repo.objects, repo.locations, located, work, progress)


def make_output_folders(work: Path, outputs: Sequence[str]) -> None:
    """Make the folders of `[run] outputs`, and those around outputs whose names have the suffix of a file."""
    for output in outputs:
        path = work / output
        with suppress(FileExistsError):  # a file or a broken link of the snapshot
            (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)


def _publish_run(repo: Repository, run: Run) -> None:
    """Publish a new run. Raises ObjectExists if the store has another one with this id."""
    try:
        runs.publish(repo, run)
    except ObjectExists:
        # A kill came between the run of a sweep and its first attempt.
        if runs.load(repo, run.id) != run:
            raise


def publish(repo: Repository, plan: AttemptPlan, observed: Observed, spool: SpoolWriter) -> None:
    """Publish the run if it is new, and the event that begins the attempt and fences all earlier ones."""
    if plan.attempt == 1:
        _publish_run(repo, plan.run)
        if plan.why is not None:
            notes.publish(repo, plan.why)
    started = AttemptStarted(
        time_s=time.time(),
        attempt=plan.attempt,
        host=socket.gethostname(),
        observed=(put := partial(repo.objects.put_record, observed))(),
        inherits=plan.inherits,
        resume=plan.resume,
    )
    declared = snapshots.load(repo, plan.run.snapshot).declared
    spool.append(started)
    writer = ledger.ChainWriter(repo, plan.run.id, plan.attempt, LAUNCHER)
    if writer.seq:
        raise _fenced(plan)
    # From here on, only the listed checkpoints of earlier attempts are valid.
    writer.append([codec.encode(started)], repair=put)
    for change in (*drift.unmet(declared, observed), *drift.conflicts(observed)):
        spool.append(Notice(time_s=time.time(), kind="environment", message=drift.describe(change)))
    if (message := attempt_environments.notice(repo, plan.run.id, plan.attempt, observed)) is not None:
        spool.append(Notice(time_s=time.time(), kind=OTHER_ENVIRONMENT, message=message))
    if plan.attempt > 1:
        # For attempts that were killed on other machines. Those of this machine are finished already.
        for event in unrecorded.of_earlier(repo, plan.run.id, plan.attempt):
            spool.append(event)
