"""The plan of an attempt, from a snapshot to a launch. `plan` returns a record, and `supervise` executes it.

Every attempt starts from a fresh materialisation of the run's snapshot, never from the author's checkout (promise 3).
A resumed attempt continues from the newest valid checkpoint. A fork without one starts from its parent's.
"""

import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from m5ws import secret_gate, secret_scan
from m5ws.checkpoints import resolve
from m5ws.config.commands import launchers
from m5ws.config.settings import RunSettings
from m5ws.errors import CorruptObject, MissingExtra, NotFound, UsageError
from m5ws.records import determinism, portable
from m5ws.records.launch import Context, LaunchRequest, Saving
from m5ws.records.note import Note
from m5ws.records.run import LaunchSpec, Parent, Run, Trainer
from m5ws.records.snapshot import Snapshot
from m5ws.repository import bindings, checkpoints, removals, runs, snapshots
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.runs import import_path, named_files
from m5ws.runs.outputs import restored_outputs
from m5ws.runs.outputs.restored_outputs import StoredOutputs
from m5ws.secret_gate import SecretText
from m5ws.store.interface import CachingStore
from m5ws.tracking.interface import Tracker

CONTEXT_VARIABLE = "M5WS_CONTEXT"
SAVE_GRACE_S = 20.0
"""Seconds that ranks have to end, in addition to the deadline of their last checkpoint."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line. If one is None, `m5ws.toml` decides.

    `environment` has variables of a launcher and of the shell (`take_over`). Those of `m5ws.toml` come before them.
    """

    command: tuple[str, ...] = ()
    trainer: Trainer | None = None
    nproc: int | None = None
    seed: int | None = None
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    observe: bool | None = None
    name: str | None = None
    environment: dict[str, str] = {}


class AttemptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, ready for execution, with its own `directory`. It starts from the checkpoint `resume`.

    `outputs`: if there is no such checkpoint, output files of an earlier attempt to restore. `why`: the expectation of
    a new run, which is published with the run.
    """

    run: Run
    attempt: int
    directory: Path
    context: Context
    request: LaunchRequest
    resume: str | None = None
    inherits: tuple[str, ...] = ()
    """The checkpoints that were valid at planning. Later publications of older attempts are ignored."""
    outputs: StoredOutputs | None = None
    why: Note | None = None

    @property
    def from_scratch(self) -> bool:
        """Return True if an attempt other than the first has nothing to resume from."""
        return self.attempt > 1 and self.resume is None and self.outputs is None


def spec(settings: RunSettings, options: RunOptions) -> LaunchSpec:
    """Return the launch spec, with options before settings. Raises UsageError if there is no command or no process."""
    command = options.command or settings.command
    if not command:
        raise UsageError("no command to run", hint="Give a script after `--`, or set [run] command in m5ws.toml.")
    environment = options.environment | settings.environment
    refuse_secrets(command, environment)
    _refuse_notebook(command)
    nproc = options.nproc if options.nproc is not None else settings.nproc
    if nproc < 1:
        raise UsageError(f"a run needs at least 1 process, not {nproc}")
    trainer = options.trainer or settings.trainer
    if trainer == "torchrun" and launchers.names_deepspeed(command):
        trainer = "deepspeed"  # Both start the same command. DeepSpeed's operator is compiled before it.
    if trainer == "python" and nproc > 1:
        raise UsageError(f"--trainer python starts 1 process, not {nproc}", hint="`--trainer torchrun` starts several.")
    return LaunchSpec(
        command=command,
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


def _refuse_notebook(command: tuple[str, ...]) -> None:
    """Raise UsageError if the command is a notebook, which is no script."""
    script, written = command[0], command[0].removesuffix(".ipynb")
    if script != written:
        raise UsageError(
            f"{script} is a notebook, and a run needs a script",
            hint=f"`jupyter nbconvert --to script {script}` writes {written}.py, which m5ws can run.",
        )


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
    run_id: str | None = None,
) -> Run:
    """Return a new run. With `reproduces`, it replays another run; with `parent`, it is a fork. Raises SecretText."""
    secret_gate.refuse_value("--name", "name", name or "")
    return Run(
        id=run_id or runs.new_id(),
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
) -> AttemptPlan:
    """Return the next attempt of `run`: the first if it is new, else one that resumes. Writes nothing.

    `home` is the workspace's `.m5ws`. Processes inherit `environment`. `saving` and `checkpoint_at` are those of
    `Context`. `python` starts the ranks. `from_scratch`: nothing of the run is restored. Raises NotFound
    if the store lacks the checkpoint of a fork.
    """
    if python == sys.executable:
        _require(run.spec)
    snapshot = snapshots.load(repo, run.snapshot)
    portable.refuse(snapshot.determinism, run.spec)
    named_files.refuse_missing_script(repo, snapshot, run.spec.command[0], author_dir)
    attempts = ledger.attempts(repo, run.id)
    attempt = max(attempts, default=0) + 1
    valid = checkpoints.valid(repo, run.id) if attempts and not from_scratch else []
    # gc never deletes the newest. It may be deleting earlier ones at this moment.
    resume = next((label for label in reversed(valid) if resolve.holds_state(repo, run.id, label)), None)
    directory = home / "runs" / run.id / f"{attempt:04d}"
    context = msgspec.structs.replace(
        _context(repo, run, snapshot, attempt, directory, author_dir, resume),
        saving=saving or Saving(),
        checkpoint_at=checkpoint_at,
    )
    segment = run.segment
    if segment is not None:
        context = msgspec.structs.replace(context, resume=segment.digest, until=segment.last)
        resume = segment.checkpoint
    if run.parent is not None and resume is None:
        resume, context = run.parent.checkpoint, _from_parent(repo, context, run.parent)
    request = _request(context, directory, environment, tracker, python)
    restores = attempts and resume is None and not from_scratch
    outputs = restored_outputs.newest_to_restore(repo, run.id) if restores else None
    return AttemptPlan(
        run=run,
        attempt=attempt,
        directory=directory,
        context=context,
        request=request,
        resume=resume,
        inherits=tuple(valid),
        outputs=outputs,
    )


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
    """Return a run that can be resumed. Raises NotFound, and UsageError if it has finished; an unsaved one has not."""
    from m5ws.runs import state

    run = runs.load(repo, run_id)
    removals.refuse_removed(repo, run_id)
    if not ledger.attempts(repo, run_id):
        raise NotFound(f"run {run_id} has not started", hint="Start a new run with `m5ws run`.")
    if state.load_newest(repo, run_id).standing == "finished":
        raise UsageError(f"run {run_id} has finished", hint=f"`m5ws show {run_id}` shows its result.")
    return run


def _context(
    repo: Repository, run: Run, snapshot: Snapshot, attempt: int, directory: Path, author_dir: Path, resume: str | None
) -> Context:
    copies, copies_bytes = repo.store.copies if isinstance(repo.store, CachingStore) else ("", 0)
    return Context(
        store=repo.store.url,
        run=run.id,
        snapshot=run.snapshot,
        attempt=attempt,
        spec=run.spec,
        determinism=snapshot.determinism,
        work_dir=str(directory / "work"),
        spool_dir=str(directory / "spool"),
        log_dir=str(directory / "logs"),
        output_dir=str(directory / "output"),
        author_dir=str(author_dir),
        resume=checkpoints.digest(repo, run.id, resume) if resume else None,
        goes_on=run.purpose != "reproduce",
        copies=str(copies),
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


def _request(
    context: Context, directory: Path, environment: Mapping[str, str], tracker: Tracker | None, python: str
) -> LaunchRequest:
    """Return the launch request. Scripts for FSDP and DeepSpeed have the same command line, under torchrun."""
    spec = context.spec
    tracking = tracker.environment() if tracker is not None else {}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(spec.nproc))
    starter = () if spec.trainer == "python" else torchrun
    prepare: tuple[str, ...] = ()
    if spec.trainer == "deepspeed":
        prepare = (python, "-m", "m5ws.training.backends.deepspeed.cpu_adam", "--try")
    # When a scheduler ends torchrun, torchrun waits this long before it kills the ranks.
    patience_s = math.ceil(context.saving.deadline_s + SAVE_GRACE_S)
    waits = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(patience_s)} if starter else {}
    return LaunchRequest(
        argv=(python, *starter, "-m", "m5ws.training.rank", "--", *spec.command),
        cwd=context.work_dir,
        environment=waits | tracking | rank_environment(context, directory, environment),
        log=str(Path(context.log_dir) / "launcher.log"),
        prepare=prepare,
    )


def rank_environment(context: Context, directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables added to the inherited environment: settings that fix bits, and the context's path.

    The shell's folders of the author's checkout on PYTHONPATH are left out: the run has them if its spec does.
    """
    added = determinism.environment(context.determinism) | {
        CONTEXT_VARIABLE: str(directory / "context"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in environment:
        added["GLOO_SOCKET_IFNAME"] = "lo"
    if environment.get(import_path.VARIABLE):
        folders = import_path.entries(environment, Path(context.author_dir))
        added[import_path.VARIABLE] = os.pathsep.join(filter(os.path.isabs, folders))
    return added | context.spec.environment
