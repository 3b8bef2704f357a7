"""The plan of an attempt, from a snapshot to a launch. `plan` returns a record, and `supervise` executes it.

Every attempt starts from a fresh materialisation of the run's snapshot, never from the author's checkout (promise 3).
A resumed attempt continues from the newest valid checkpoint. A fork without one starts from its parent's.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from m5ws import secret_gate, secret_scan
from m5ws.agent import places, stop
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.attempts import named_files
from m5ws.config.commands import launchers
from m5ws.config.settings import RunSettings
from m5ws.containers import engines
from m5ws.containers.command import PYTHON
from m5ws.errors import CorruptObject, MissingExtra, NotFound, UsageError
from m5ws.launch import launch_request
from m5ws.outputs import saved
from m5ws.outputs.saved import StoredOutputs
from m5ws.records import portable
from m5ws.records.launch import ALONE, Context, LaunchRequest, Place, Saving
from m5ws.records.nodes import Planned
from m5ws.records.run import LaunchSpec, Parent, Run, Starter, Trainer
from m5ws.records.snapshot import Snapshot
from m5ws.repository import bindings, removals
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import local_copies
from m5ws.secret_gate import SecretText
from m5ws.store.cache.cache import CachedStore
from m5ws.tracking.interface import Tracker

_OF_NODE = (
    "store", "spool_dir", "log_dir", "output_dir", "author_dir", "copies", "references", "copies_bytes", "local"
)  # fmt: skip
"""The fields of a context that differ between the nodes of an attempt."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line. If one is None, `m5ws.toml` decides.

    `nproc` is the number of processes on each of the `nodes`. `environment` has the shell's PYTHONPATH, if it has
    folders of the workspace. `m5ws.toml` comes before it.
    """

    command: tuple[str, ...] = ()
    directory: str | None = None
    trainer: Trainer | None = None
    nproc: int | None = None
    nodes: int = 1
    seed: int | None = None
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    observe: bool | None = None
    name: str | None = None
    environment: dict[str, str] = {}
    without: tuple[str, ...] = ()


def spec(settings: RunSettings, options: RunOptions) -> LaunchSpec:
    """Return the launch spec, with options before settings. Raises UsageError if there is no command."""
    command = options.command or settings.command
    if not command:
        raise UsageError("no command to run", hint="Give a script after `--`, or set [run] command in m5ws.toml.")
    environment = options.environment | settings.environment
    refuse_secrets(command, environment)
    trainer, nproc = processes(command, options, settings.trainer, settings.nproc * options.nodes)
    return LaunchSpec(
        command=command,
        directory=options.directory or os.path.normpath(settings.directory),
        trainer=trainer,
        nproc=nproc,
        seed=options.seed if options.seed is not None else settings.seed,
        environment=environment,
        checkpoint_every=options.checkpoint_every or settings.checkpoint_every,
        checkpoint_minutes=options.checkpoint_minutes or settings.checkpoint_minutes,
        fingerprint_every=(
            settings.fingerprint_every if options.fingerprint_every is None else options.fingerprint_every
        ),
        outputs=settings.outputs,
        observe=settings.observe if options.observe is None else options.observe,
    )


def processes(
    command: tuple[str, ...], options: RunOptions, trainer: Starter | None, nproc: int | None
) -> tuple[Starter, int | None]:
    """Return the program that starts the processes of a command, and their number if the command leaves it to m5ws.

    `trainer` and `nproc`, the number of all processes, count where `options` have none. Raises UsageError for options
    that contradict the command, for a launcher without a script, and for a launcher of another environment.
    """
    launchers.refuse_unusable(command)
    own = launchers.read(command).starter
    if own is not None:
        if options.trainer is not None or options.nproc is not None:
            raise UsageError(
                f"--trainer and --nproc cannot be combined with `{command[0]}`, which starts its own processes",
                hint=f"Leave the options out, or give the script without {command[0]}.",
            )
        return own, 1 if own in ("python", "command") else None
    of_nodes = options.nproc * options.nodes if options.nproc is not None else None
    count = of_nodes or (1 if options.trainer == "python" else nproc or 1)
    if options.trainer == "python" and count > 1:
        raise UsageError(f"--trainer python starts 1 process, not {count}", hint="`--trainer torchrun` starts several.")
    kept = trainer if trainer in ("torchrun", "deepspeed") else None
    return options.trainer or kept or ("python" if count == 1 else "torchrun"), count


def refuse_secrets(command: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raise SecretText for text like a secret in values that the run's record and MLflow's page contain."""
    secret_gate.refuse({"command": command, "environment": environment}, "the run")
    for name in environment:
        if secret_scan.named_secret(name):
            raise SecretText(f"[run] environment.{name}")


def new_run(
    snapshot_id: str,
    launch: LaunchSpec,
    *,
    name: str | None = None,
    reproduces: str | None = None,
    parent: Parent | None = None,
) -> Run:
    """Return a new run. With `reproduces`, it replays another run; with `parent`, it is a fork. Raises SecretText."""
    secret_gate.refuse_value("--name", "name", name or "")
    return Run(
        id=runs.new_id(),
        snapshot=snapshot_id,
        spec=launch,
        purpose="reproduce" if reproduces else "train",
        reproduces=reproduces,
        parent=parent,
        name=name,
        created_s=time.time(),
    )


def plan(
    repo: Repository,
    run: Run,
    home: Path,
    author_dir: Path,
    environment: Mapping[str, str],
    tracker: Tracker | None = None,
    saving: Saving | None = None,
    checkpoint_at: tuple[int, ...] | None = None,
    python: str = sys.executable,
    *,
    from_scratch: bool = False,
    place: Place = ALONE,
    led: Planned | None = None,
) -> AttemptPlan:
    """Return the next attempt of `run`: the first if the run is new, else a resuming attempt. Writes nothing.

    `home` is the workspace's `.m5ws`. Processes inherit `environment`. `saving` and `checkpoint_at` are as in
    `Context`. `python` starts the ranks. `from_scratch`: nothing of the run is restored. Raises NotFound if the store
    lacks the checkpoint of a fork, Removed if a run that the run rests on is removed, and OutputsConflict.
    `place` is the place of this machine among the nodes. `led` has the plan of the leader on another node.
    """
    snapshot = refuse_unfit(repo, run, environment, place.nodes)
    image = engines.image_to_start(snapshot.declared.image, environment)
    if python == sys.executable and image is None:
        _require(run.spec)
    chosen = _Choice.of_leader(led) if led is not None else _choose(repo, run, from_scratch=from_scratch)
    # gc never deletes the newest. It may be deleting earlier checkpoints at this moment.
    resume = chosen.inherits[-1] if chosen.inherits else None
    directory = home / "runs" / run.id / f"{chosen.attempt:04d}"
    context = msgspec.structs.replace(
        _context(repo, run, snapshot, chosen.attempt, directory, author_dir, resume),
        saving=saving or Saving(),
        local=places.folder_of_copies(saving or Saving(), environment),
        checkpoint_at=checkpoint_at,
        image=image,
    )
    segment = run.segment
    if segment is not None:
        context = msgspec.structs.replace(context, resume=segment.digest, until=segment.last)
        resume = segment.checkpoint
    if run.parent is not None and resume is None:
        resume, context = run.parent.checkpoint, _from_parent(repo, context, run.parent)
    if led is not None:
        own = {name: getattr(context, name) for name in _OF_NODE}
        context = msgspec.structs.replace(led.context, **own, image=image)
    tracking = tracker.environment() if tracker is not None else {}
    request = _render(context, directory, environment, tracking, python, image, place)
    return AttemptPlan(
        run=run,
        attempt=chosen.attempt,
        directory=directory,
        context=context,
        request=request,
        resume=resume,
        inherits=chosen.inherits,
        outputs=StoredOutputs(run=run.id, names=chosen.outputs) if chosen.outputs else None,
        place=place,
    )


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an attempt, the checkpoints that count in it, and the output files to restore."""

    attempt: int
    inherits: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of_leader(cls, led: Planned) -> "_Choice":
        return cls(attempt=led.context.attempt, inherits=led.inherits, outputs=led.outputs)


def _choose(repo: Repository, run: Run, *, from_scratch: bool) -> _Choice:
    """Return the number of the next attempt, the checkpoints that count in it, and the output files to restore."""
    attempts = ledger.attempts(repo, run.id)
    valid = checkpoints.valid(repo, run.id) if attempts and not from_scratch else []
    restores = attempts and run.segment is None and not from_scratch
    stored = saved.newest_to_restore(repo, run.id) if restores else None
    names = stored.names if stored is not None else ()
    return _Choice(attempt=max(attempts, default=0) + 1, inherits=tuple(valid), outputs=names)


def is_resumable(repo: Repository, run: Run) -> bool:
    """Return True if the next attempt is the first, or has something to restore. Raises UsageError for a conflict."""
    chosen = _choose(repo, run, from_scratch=False)
    return chosen.attempt == 1 or bool(chosen.inherits or chosen.outputs or run.parent)


def refuse_unfit(repo: Repository, run: Run, environment: Mapping[str, str], nodes: int) -> Snapshot:
    """Return the snapshot of a run that can be launched on a number of nodes. Nothing of the machine is checked.

    Raises UsageError, NotFound, Removed.
    """
    removals.refuse(repo, *removals.origins(run))
    snapshot = snapshots.load(repo, run.snapshot)
    portable.refuse(snapshot.determinism, run.spec)
    named_files.refuse_missing_script(repo, snapshot, run.spec, environment)
    launch = run.spec
    if nodes > 1 and launch.trainer not in ("torchrun", "deepspeed"):
        raise UsageError(
            f"{nodes} nodes require torchrun, and {launch.trainer} starts the processes of this run",
            hint="Start the run with a script without a launcher, and --nproc.",
        )
    if launch.nproc is not None and launch.nproc % nodes:
        raise UsageError(f"{launch.nproc} processes cannot be spread evenly over {nodes} nodes")
    return snapshot


def _render(
    context: Context,
    directory: Path,
    environment: Mapping[str, str],
    tracking: Mapping[str, str],
    python: str,
    image: str | None,
    place: Place,
) -> LaunchRequest:
    """Return the launch of an attempt. Processes in an image see the attempt's directory, the store and the caches.

    They do not see a tracker's database in a file, and inherit none of the variables that are rendered here.
    """
    patience_s = stop.patience_s(context.saving)
    if image is None:
        return launch_request.render(context, directory, environment, tracking, python, patience_s, place)
    servers = tracking if any(value.startswith("http") for value in tracking.values()) else {}
    request = launch_request.render(context, directory, {}, servers, PYTHON, patience_s, place)
    store = () if "://" in context.store else (context.store,)
    folders = (str(directory), *store, *filter(None, (context.copies, context.references)))
    return msgspec.structs.replace(request, image=image, folders=folders, unset=launch_request.of_ranks(environment))


def take_published(repo: Repository, plan: AttemptPlan) -> AttemptPlan:
    """Return the plan of an attempt on several nodes, which have uploaded their copies of checkpoints after the plan.

    If the copies complete a checkpoint that a kill kept from publication, the attempt resumes from it.
    """
    run = plan.run.id
    if plan.place.nodes == 1 or plan.attempt == 1:
        return plan
    local_copies.publish_left(repo, run, plan.context.local)
    valid = checkpoints.valid(repo, run)
    if tuple(valid) == plan.inherits:
        return plan
    resume = checkpoints.digest(repo, run, valid[-1])
    context = msgspec.structs.replace(plan.context, resume=resume, parent=None)
    return msgspec.structs.replace(plan, context=context, resume=valid[-1], inherits=tuple(valid))


def repeat_fingerprints(planned: AttemptPlan, steps: Iterable[int]) -> AttemptPlan:
    """Return the plan of a replay that fingerprints the state after these steps of its original."""
    context = msgspec.structs.replace(planned.context, fingerprint_at=tuple(steps))
    return msgspec.structs.replace(planned, context=context)


def _require(launch: LaunchSpec) -> None:
    """Raise MissingExtra if the launcher's library is not installed. Nothing is imported."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("launching a training script", "train")
    if launch.trainer == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("training with DeepSpeed", "deepspeed")


def resumed(repo: Repository, run_id: str) -> Run:
    """Return a run that can be resumed. An unsaved run has not finished.

    A run that no attempt has begun was cancelled or killed before. Raises NotFound, Removed, and UsageError if it has
    finished.
    """
    from m5ws.runs import state

    run = runs.load(repo, run_id)
    removals.refuse(repo, run_id)
    if run.reproduces is not None and not ledger.attempts(repo, run_id):
        raise NotFound(f"replay {run_id} has not started", hint=f"`m5ws reproduce {run.reproduces}` starts another.")
    if state.load_newest(repo, run_id).standing == "finished":
        raise UsageError(f"run {run_id} has finished", hint=f"`m5ws show {run_id}` shows its result.")
    return run


def _context(
    repo: Repository, run: Run, snapshot: Snapshot, attempt: int, directory: Path, author_dir: Path, resume: str | None
) -> Context:
    near = repo.store if isinstance(repo.store, CachedStore) else None
    copies, copies_bytes = near.copies if near is not None else ("", 0)
    return Context(
        store=repo.store.url,
        run=run.id,
        snapshot=run.snapshot,
        attempt=attempt,
        spec=run.spec,
        determinism=snapshot.determinism,
        spool_dir=str(directory / "spool"),
        log_dir=str(directory / "logs"),
        output_dir=str(directory / "output"),
        author_dir=str(author_dir),
        resume=checkpoints.digest(repo, run.id, resume) if resume else None,
        goes_on=run.purpose != "reproduce",
        copies=str(copies),
        references=str(near.references.directory) if near is not None and near.references is not None else "",
        copies_bytes=copies_bytes,
    )


def _from_parent(repo: Repository, context: Context, parent: Parent) -> Context:
    """Return the context of an attempt that starts from another run's checkpoint. Raises NotFound, CorruptObject."""
    try:
        where = checkpoints.key(parent.run, parent.checkpoint)
        checkpoint = bindings.load_checkpoint(repo.objects, where, parent.digest, f"runs/{context.run}/run")
    except NotFound as error:
        raise NotFound(
            f"the checkpoint {parent.name}, from which the run starts, is not in the store",
            hint="`m5ws pull` copies a run together with that checkpoint.",
        ) from error
    if checkpoint.step != parent.step:
        raise CorruptObject(f"checkpoint {parent.name} does not match the record of run {context.run}")
    return msgspec.structs.replace(context, resume=parent.digest, parent=parent)
