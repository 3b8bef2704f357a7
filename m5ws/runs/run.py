"""`run`: from a snapshot to a launch. `plan` returns what will happen as a record; `supervise` does it.

Every attempt starts from a fresh materialisation of the run's snapshot, never from the author's checkout
(promise 3); a resumed attempt goes on from the newest checkpoint that counts, a fork that has none from its parent's.
"""

import importlib.util
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from m5ws import secret_scan
from m5ws.checkpoints import resolve
from m5ws.config.settings import RunSettings
from m5ws.errors import CorruptObject, MissingExtra, NotFound, UsageError
from m5ws.records import determinism, portable
from m5ws.records.launch import Context, LaunchRequest, Saving
from m5ws.records.run import LaunchSpec, Parent, Run, Trainer
from m5ws.records.snapshot import Snapshot
from m5ws.repository import bindings, checkpoints, runs, snapshots
from m5ws.repository.files import trees
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import restored_outputs
from m5ws.runs.outputs.restored_outputs import Stored
from m5ws.store.interface import Near
from m5ws.tracking.interface import Tracker

CONTEXT_VARIABLE = "M5WS_CONTEXT"
SAVE_GRACE_S = 20.0
"""Given to ranks, beyond what their last checkpoint may take, to end."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says of a run; None leaves it to `m5ws.toml`."""

    command: tuple[str, ...] = ()
    trainer: Trainer | None = None
    nproc: int | None = None
    seed: int | None = None
    checkpoint_every: int | None = None
    checkpoint_minutes: float | None = None
    fingerprint_every: int | None = None
    name: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, ready to be executed. `directory` is its own; `resume` names the checkpoint it starts from.

    `outputs`: without such a checkpoint, files of an earlier attempt that the script is given.
    """

    run: Run
    attempt: int
    directory: Path
    context: Context
    request: LaunchRequest
    resume: str | None = None
    inherits: tuple[str, ...] = ()
    """The checkpoints that counted when it was planned. What an old attempt publishes after that does not count."""
    outputs: Stored | None = None

    @property
    def from_scratch(self) -> bool:
        """Whether an attempt that is not the first has nothing to go on from."""
        return self.attempt > 1 and self.resume is None and self.outputs is None


def spec(settings: RunSettings, options: Options) -> LaunchSpec:
    """Return the launch spec: options over settings. Raises UsageError if there is no command or no process."""
    command = options.command or settings.command
    if not command:
        raise UsageError("there is nothing to run", hint="Give a script after `--`, or set [run] command in m5ws.toml.")
    refuse_secrets(command, settings.environment)
    nproc = options.nproc if options.nproc is not None else settings.nproc
    if nproc < 1:
        raise UsageError(f"a run needs at least 1 process, not {nproc}")
    trainer = options.trainer or settings.trainer
    if trainer == "python" and nproc > 1:
        raise UsageError(f"Python alone starts 1 process, not {nproc}", hint="`--trainer torchrun` starts many.")
    return LaunchSpec(
        command=command,
        trainer=trainer,
        nproc=nproc,
        seed=options.seed if options.seed is not None else settings.seed,
        environment=dict(settings.environment),
        checkpoint_every=options.checkpoint_every or settings.checkpoint_every,
        checkpoint_minutes=options.checkpoint_minutes or settings.checkpoint_minutes,
        fingerprint_every=options.fingerprint_every or settings.fingerprint_every,
        outputs=settings.outputs,
    )


def refuse_secrets(command: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raise UsageError for what looks like a secret in what becomes part of the run's record, and of MLflow's page."""
    for position, word in enumerate(command):
        if secret_scan.masked(word) != word:
            raise UsageError(
                f"argument {position} of the command looks like a secret, and would be stored with the run",
                hint="Hand secrets over in environment variables: the ranks inherit them, and they are not recorded.",
            )
    for name, value in environment.items():
        if secret_scan.named_secret(name) or secret_scan.masked(value) != value:
            raise UsageError(
                f"[run] environment.{name} looks like a secret, and would be stored with the run",
                hint="Set it in the shell instead: the ranks inherit it, and it is not recorded.",
            )


def new_run(
    snapshot_id: str,
    launch: LaunchSpec,
    *,
    name: str | None = None,
    reproduces: str | None = None,
    parent: Parent | None = None,
    run_id: str | None = None,
) -> Run:
    """Return a run that does not exist yet; with `reproduces`, one that repeats another, with `parent` a fork."""
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
) -> Plan:
    """Return the next attempt of `run`: the first if it is new, else one that resumes. Writes nothing.

    `home` is the workspace's `.m5ws`; `environment` what the processes will inherit; `saving` and `checkpoint_at`
    are of `Context`; `python` starts the ranks. Raises NotFound if the checkpoint that a fork starts from is not in the
    store.
    """
    if python == sys.executable:
        _require(run.spec)
    snapshot = snapshots.load(repo, run.snapshot)
    portable.refuse(snapshot.determinism, run.spec)
    _find_script(repo, snapshot, run.spec.command)
    attempts = ledger.attempts(repo, run.id)
    attempt = max(attempts, default=0) + 1
    valid = checkpoints.valid(repo, run.id) if attempts else []
    # The newest is never retired; gc may be retiring earlier ones at this moment.
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
    outputs = restored_outputs.newest(repo, run.id) if attempts and resume is None else None
    return Plan(
        run=run,
        attempt=attempt,
        directory=directory,
        context=context,
        request=request,
        resume=resume,
        inherits=tuple(valid),
        outputs=outputs,
    )


def _find_script(repo: Repository, snapshot: Snapshot, command: tuple[str, ...]) -> None:
    """Raise UsageError if the command is not a script of the snapshot: better now than in every rank."""
    script = command[0]
    if script in ("python", "python3"):
        raise UsageError("the command begins with `python`", hint="Give the script alone: m5ws run -- train.py …")
    if script.startswith("-"):
        return
    if os.path.isabs(script):
        raise UsageError(f"{script} is not in the snapshot", hint="Give the script's path in the workspace.")
    wanted = os.fsencode(os.path.normpath(script))
    parts = dict.fromkeys(snapshot.trees.values())
    if not any(entry.path == wanted for tree in parts for entry in trees.load(repo.objects, tree).entries):
        raise UsageError(f"the snapshot has no file {script}", hint="`m5ws show SNAPSHOT` lists what it has.")


def _require(launch: LaunchSpec) -> None:
    """Raise MissingExtra if what the script is launched with is not installed; nothing is imported to find out."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("launching a training script", "train")
    if launch.trainer == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("training with DeepSpeed", "deepspeed")


def resumed(repo: Repository, run_id: str) -> Run:
    """Return a run that can go on. Raises NotFound, UsageError if it has finished; one that is unsaved has not."""
    from m5ws.runs import state

    run = runs.load(repo, run_id)
    if not ledger.attempts(repo, run_id):
        raise NotFound(f"run {run_id} has not started", hint="Start a new one: m5ws run.")
    if state.load_newest(repo, run_id).standing == "finished":
        raise UsageError(f"run {run_id} has finished", hint=f"`m5ws show {run_id}` says what it came to.")
    return run


def _context(
    repo: Repository, run: Run, snapshot: Snapshot, attempt: int, directory: Path, author_dir: Path, resume: str | None
) -> Context:
    copies, copies_bytes = repo.store.copies if isinstance(repo.store, Near) else ("", 0)
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
        found = bindings.named(repo.objects, where, parent.digest, f"runs/{context.run}/run")
    except NotFound as error:
        raise NotFound(
            f"checkpoint {parent.name}, which the run starts from, is not in the store",
            hint="`m5ws pull` brings a run with the checkpoint that it starts from.",
        ) from error
    if found.step != parent.step:
        raise CorruptObject(f"run {context.run} says that it starts from {parent.name}, which is another checkpoint")
    return msgspec.structs.replace(context, resume=parent.digest, parent=parent)


def _request(
    context: Context, directory: Path, environment: Mapping[str, str], tracker: Tracker | None, python: str
) -> LaunchRequest:
    """Render the launch; the same command line for FSDP and DeepSpeed, whose scripts run under torchrun."""
    spec = context.spec
    tracking = tracker.environment() if tracker is not None else {}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(spec.nproc))
    starter = () if spec.trainer == "python" else torchrun
    prepare: tuple[str, ...] = ()
    if spec.trainer == "deepspeed":
        prepare = (python, "-m", "m5ws.training.backends.deepspeed.cpu_adam")
    # A scheduler tells torchrun to end, which then waits so long before it kills the ranks.
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
    """Return what is added to the inherited environment: settings that fix bits, and where the context is.

    Paths into the author's checkout leave PYTHONPATH, or a rank would import code that was never pinned.
    """
    added = determinism.environment(context.determinism) | {
        CONTEXT_VARIABLE: str(directory / "context"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in environment:
        added["GLOO_SOCKET_IFNAME"] = "lo"
    if path := environment.get("PYTHONPATH"):
        author = Path(context.author_dir).resolve()
        folders = [Path(part).resolve() for part in path.split(os.pathsep) if part]
        added["PYTHONPATH"] = os.pathsep.join(str(path) for path in folders if not path.is_relative_to(author))
    return added | context.spec.environment
