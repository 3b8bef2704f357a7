"""`m5ws fork`: a new run (a fork) that starts from a checkpoint of another run, with changes.

A fork has its parent's snapshot and launch spec, except for the given changes.
"""

from collections.abc import Callable, Sequence
from os.path import normpath
from typing import Literal

import msgspec

from m5ws.attempts import planning
from m5ws.checkpoints import resolve
from m5ws.diff import diff
from m5ws.errors import NotFound
from m5ws.records.base import Digest
from m5ws.records.run import LaunchSpec, Parent, Run
from m5ws.records.verdict import Change
from m5ws.repository.objects import is_digest
from m5ws.repository.references import checkpoints, ids, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.config import overrides


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A fork: the checkpoint, as `resolve` reads it, and the changes."""

    checkpoint: str
    snapshot: Digest | None = None
    overrides: tuple[str, ...] = ()
    options: planning.RunOptions = planning.RunOptions()
    restart: tuple[Literal["data", "schedule", "generators"], ...] = ()


TakeKept = Callable[[str, int | None], tuple[str, Digest] | None]
"""Called with a run, and the step of a checkpoint if one is named, as `kept_work.take_checkpoint`."""


def new_run(repo: Repository, request: ForkRequest, take_kept: TakeKept = lambda *_: None) -> Run:
    """Return a new fork. Publishes its snapshot if it is derived.

    A checkpoint that `take_kept` returns comes before the checkpoints in the store, which are older.
    Raises NotFound, AmbiguousId, UsageError for the checkpoint; UsageError for an override.
    """
    named, is_kept = _start(repo, request.checkpoint, take_kept)
    origin = runs.load(repo, named.run)
    spec = _spec(origin.spec, request.options)
    snapshot, spec = overrides.change(repo, request.snapshot or origin.snapshot, spec, request.overrides)
    # A fork of a fork leaves out the samples that its parent left out.
    left_out = (*origin.spec.without, *_left_out(repo, snapshot, request.options.without))
    spec = msgspec.structs.replace(spec, without=tuple(dict.fromkeys(left_out)))
    parent = Parent(
        run=named.run,
        checkpoint=named.name,
        step=checkpoints.step_of(named.name),
        digest=named.digest,
        settings=_settings(origin, snapshot, spec),
        restart=tuple(sorted(set(request.restart))),
        kept=is_kept,
    )
    return planning.new_run(snapshot, spec, name=request.options.name, parent=parent)


def _left_out(repo: Repository, snapshot: Digest, paths: Sequence[str]) -> tuple[str, ...]:
    """Return all names of the paths of `--without`. Raises NotFound for a path at which a snapshot has no file."""
    left_out: list[str] = []
    for path in map(normpath, paths):
        if not (names := snapshots.names_of(repo, snapshot, path)):
            hint = f"Paths are relative to the workspace; `m5ws show {snapshot[:12]}` lists the datasets."
            raise NotFound(f"--without {path}: the snapshot has no file there", hint=hint)
        left_out += names
    return tuple(left_out)


def _start(repo: Repository, text: str, take_kept: TakeKept) -> tuple[resolve.CheckpointRef, bool]:
    """Return the checkpoint with the name `text`, and True if it is the kept work of a removed run."""
    prefix, _, step = text.partition("@")
    if not is_digest(prefix) and (step.isdecimal() or not step):
        _, run = ids.resolve(repo, prefix, ("run",))
        if (kept := take_kept(run, int(step) if step else None)) is not None:
            return resolve.CheckpointRef(run=run, name=kept[0], digest=kept[1]), True
    return resolve.resolve(repo, text), False


def with_changes(repo: Repository, parent: Parent, snapshot: Digest, spec: LaunchSpec) -> Parent:
    """Return the start of a fork whose snapshot and launch are changed. Raises NotFound."""
    return msgspec.structs.replace(parent, settings=_settings(runs.load(repo, parent.run), snapshot, spec))


def _settings(origin: Run, snapshot: Digest, spec: LaunchSpec) -> Literal["checkpoint", "script"]:
    """Return the source of a fork's settings: the checkpoint, unless the fork's inputs differ from the original's."""
    before = (origin.snapshot, origin.spec.command, origin.spec.environment)
    return "checkpoint" if (snapshot, spec.command, spec.environment) == before else "script"


def changes(repo: Repository, fork: Run) -> tuple[Change, ...]:
    """Return the differences between a fork and its parent in snapshot and launch. Raises NotFound."""
    assert fork.parent is not None
    origin = runs.load(repo, fork.parent.run)
    return diff.between_inputs(repo, origin, fork)


def _spec(spec: LaunchSpec, options: planning.RunOptions) -> LaunchSpec:
    """Return the parent's launch spec with the given options. Raises UsageError as `spec` does."""
    fields: Sequence[str] = LaunchSpec.__struct_fields__
    given = {name: getattr(options, name) for name in planning.RunOptions.__struct_fields__ if name in fields}
    given["environment"] = spec.environment | options.environment
    given["without"] = spec.without
    changed = msgspec.structs.replace(spec, **{name: value for name, value in given.items() if value not in (None, ())})
    if options.command or options.trainer or options.nproc:
        trainer, nproc = planning.processes(changed.command, options, spec.trainer, spec.nproc)
        changed = msgspec.structs.replace(changed, trainer=trainer, nproc=nproc)
    planning.refuse_secrets(changed.command, changed.environment)
    return changed
