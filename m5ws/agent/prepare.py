"""The preparation of a node: its work directory and input files, and the context of its ranks.

One run at a time writes its input files. Free space is checked before the first byte. Without the lock, two runs could
count on the same space.
"""

import logging
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from m5ws import locks
from m5ws.agent import access, places, run_lock
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports
from m5ws.errors import M5Error
from m5ws.progress import Progress, report
from m5ws.records import codec
from m5ws.records.launch import Observing
from m5ws.records.snapshot import Snapshot
from m5ws.repository.files import trees
from m5ws.repository.files.materialise import materialise
from m5ws.repository.references import snapshots
from m5ws.work import directories
from m5ws.work.directories import WorkDirectory

_log = logging.getLogger(__name__)
_QUIET_S = 1.0
_STARTING = "starting"


def _assign_directory(plan: AttemptPlan, work: WorkDirectory, observing: Observing) -> AttemptPlan:
    """Return the plan with a work directory. Processes start in a folder of it, and see no other current directory."""
    seen, request = str(work.seen), plan.request
    start = os.path.normpath(work.seen / plan.run.spec.directory)
    request = msgspec.structs.replace(
        request,
        cwd=start,
        mount=work.mount,
        environment=request.environment | {"PWD": start},
        unset=(*request.unset, "OLDPWD"),
    )
    # In a container, the number means another process.
    own = os.getpid() if request.image is None else None
    context = msgspec.structs.replace(plan.context, work_dir=seen, observing=observing, supervisor=own)
    return msgspec.structs.replace(plan, request=request, context=context)


def _assign_cache(ports: Ports, plan: AttemptPlan, snapshot: Snapshot) -> AttemptPlan:
    """Return the plan with the cache of this machine, if datasets of the snapshot stay in their remotes."""
    if not snapshot.remote or ports.files is None:
        return plan
    folder, limit_bytes = ports.files
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request, context = plan.request, plan.context
    if request.image is not None:
        folders = dict.fromkeys((*request.folders, str(folder), *_folders(snapshot)))
        request = msgspec.structs.replace(request, folders=tuple(folders))
    context = msgspec.structs.replace(context, files=str(folder), files_bytes=limit_bytes, remotes=_folders(snapshot))
    return msgspec.structs.replace(plan, request=request, context=context)


def _assign_copies(plan: AttemptPlan) -> AttemptPlan:
    """Return the plan with this node's folder for copies of checkpoints; without it if it cannot be made."""
    request, folder = plan.request, plan.context.local
    if folder:
        try:
            places.make_private(Path(folder), "Set [checkpoint] local in m5ws.toml to another folder.")
        except (M5Error, OSError) as error:
            _log.warning("checkpoints have no copies on this node: %s", error)
            folder = ""
    elif plan.context.saving.local is not None:
        local = plan.context.saving.local
        _log.warning("checkpoints have no copies on this node: it lacks a variable of [checkpoint] local = %r", local)
    if folder and request.image is not None:
        request = msgspec.structs.replace(request, folders=tuple(dict.fromkeys((*request.folders, folder))))
    context = msgspec.structs.replace(plan.context, local=folder)
    return msgspec.structs.replace(plan, request=request, context=context)


def _folders(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the folders in which datasets stay."""
    return tuple(dataset.url for dataset in snapshot.remote if "://" not in dataset.url)


@contextmanager
def lock_starts(root: Path, progress: Progress | None) -> Iterator[None]:
    """Wait for other runs that write input files, and have the same folder `root`. They wait afterwards."""
    descriptor = os.open(root / _STARTING, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # Some file systems have no locks.
            if not locks.acquire(descriptor, _QUIET_S):
                report(progress, "waiting for the input files of another run")
                locks.acquire(descriptor, math.inf)
        yield
    finally:
        locks.release(descriptor)


def _make_output_folders(work: Path, outputs: Sequence[str]) -> None:
    """Make the folders of `[run] outputs`, and folders around outputs whose names have the suffix of a file."""
    for output in outputs:
        path = work / output
        with suppress(FileExistsError):  # a file or a broken link of the snapshot
            (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)


def clear(plan: AttemptPlan) -> None:
    """Make the attempt's directory, and mark it as the place of its spools.

    An existing directory was left by a supervisor that was killed before its attempt began.
    """
    directories.remove(plan.directory)
    shutil.rmtree(plan.directory, ignore_errors=True)
    for folder in (plan.context.spool_dir, plan.context.log_dir, plan.context.output_dir):
        Path(folder).mkdir(parents=True, exist_ok=True)
    run_lock.mark_directory(plan.directory)


def prepare(ports: Ports, plan: AttemptPlan, progress: Progress | None) -> tuple[AttemptPlan, WorkDirectory]:
    """Make the work directory with the input files, write the context of the ranks, and return the plan with both.

    Raises M5Error if this node fails its checks, which `[run] preflight` asks for.
    """
    if ports.preflight is not None:
        ports.preflight(plan.run, plan.place.nodes, progress)
    run, author = plan.run.reproduces or plan.run.id, Path(plan.context.author_dir)
    snapshot = snapshots.load(ports.repo, plan.run.snapshot)
    # Every engine mounts folders in its containers.
    can_mount = ports.launcher.can_mount if plan.request.image is None else lambda *_: True
    work = directories.make(ports.work_root, plan.directory, run, author, can_mount, plan.run.spec.directory)
    plan = _assign_copies(_assign_cache(ports, _assign_directory(plan, work, ports.observing), snapshot))
    plan = access.limit(ports, plan)
    with lock_starts(ports.starts_dir or ports.work_root, progress):
        located = [trees.load(ports.repo.objects, tree) for tree in dict.fromkeys(snapshot.trees.values())]
        materialise(ports.repo.objects, located, work.path, progress)
    _make_output_folders(work.path, plan.run.spec.outputs)
    (plan.directory / "context").write_bytes(codec.encode(plan.context))
    return plan, work
