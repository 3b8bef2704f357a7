"""Sweeps: runs of one snapshot and launch that differ in the values of a grid.

A sweep has no record of its own. Each of its runs contains the whole grid, and the id of a run follows from the sweep's
id and the run's position. So any run of a sweep is enough to list the other runs and to start the runs that have not
begun. No run can begin twice.
"""

import hashlib
import time
from collections.abc import Sequence

import msgspec

from m5ws.attempts import fork, sweep_grid
from m5ws.attempts.sweep_grid import OPTION
from m5ws.errors import NotFound, UsageError
from m5ws.records.run import Axis, Run, Sweep
from m5ws.repository import removals
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.runs.listing import RunRow, list_runs
from m5ws.snapshot.config import overrides

NOT_STARTED = "not started"
REMOVED = "removed"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a sweep, with the values of its keys. `state` is the run's state, or `NOT_STARTED`, or `REMOVED`."""

    id: str
    name: str
    position: int
    values: dict[str, str]
    state: str = NOT_STARTED
    last_step: int = 0

    @property
    def is_waiting(self) -> bool:
        """Return True if the run has not finished, and was not removed."""
        return self.state not in ("finished", REMOVED)


def create(repo: Repository, base: Run, axes: Sequence[Axis]) -> Sweep:
    """Return a new sweep over the inputs of `base`, which is not published. Nothing is written.

    Raises UsageError for a key that neither the config nor the command has, and for a value that the config refuses.
    """
    files = overrides.config_files(repo, snapshots.load(repo, base.snapshot).config)
    for axis in axes:
        for value in axis.values:
            _, spec, _ = overrides.changed(files, base.spec, [overrides.parse(f"{axis.key}={value}", OPTION)])
            if spec.seed != base.spec.seed and base.parent is not None and "generators" not in base.parent.restart:
                raise UsageError(
                    f"{OPTION} seed has no effect on a fork, which continues with the generators of its parent",
                    hint="`--restart generators` sets the generators back to the seed of each run.",
                )
    return Sweep(id=runs.new_id(), snapshot=base.snapshot, axes=tuple(axes), name=base.name)


def list_planned(sweep: Sweep) -> list[SweepRun]:
    """Return all runs of a sweep in their order, as if none had begun."""
    return [
        SweepRun(
            id=hashlib.blake2b(f"{sweep.id}/{position}".encode(), digest_size=6).hexdigest(),
            name=sweep_grid.name_run(sweep.name, values),
            position=position,
            values={sweep_grid.name_key(key): value for key, value in values.items()},
        )
        for position, values in enumerate(sweep_grid.combinations(sweep.axes))
    ]


def list_all(repo: Repository, sweep: Sweep) -> list[SweepRun]:
    """Return all runs of a sweep in their order, each with its state."""
    planned = list_planned(sweep)
    existing, removed = set(runs.ids(repo)), removals.removed_runs(repo)
    rows = {row.id: row for row in list_runs(repo, names=[run.id for run in planned if run.id in existing])}
    return [_with_state(run, rows[run.id], is_removed=run.id in removed) if run.id in rows else run for run in planned]


def _with_state(run: SweepRun, row: RunRow, *, is_removed: bool) -> SweepRun:
    state = REMOVED if is_removed else "damaged" if row.problem else row.standing if row.attempts else NOT_STARTED
    return msgspec.structs.replace(run, state=state, last_step=row.last_step)


def list_begun(repo: Repository, sweep_id: str) -> list[str]:
    """Return the ids of a sweep's runs that have begun and are not removed, in their order. Raises NotFound."""
    sweep = load(repo, sweep_id).sweep
    assert sweep is not None
    return [run.id for run in list_all(repo, sweep) if run.state not in (NOT_STARTED, REMOVED)]


def load(repo: Repository, sweep_id: str) -> Run:
    """Return the first readable run of a sweep, which describes the sweep. Raises NotFound."""
    members = [run for run, fact in runs.facts(repo).items() if fact.sweep == sweep_id]
    # A wrong key of the run index could name a run of another sweep.
    of_sweep = (
        run for run in runs.readable(repo, sorted(members)) if run.sweep is not None and run.sweep.id == sweep_id
    )
    run = next(of_sweep, None)
    if run is None:
        raise NotFound(f"no sweep {sweep_id}")
    return run


def derive(repo: Repository, sweep: Sweep, base: Run, planned: SweepRun) -> Run:
    """Return a run of a sweep that has not begun, after publishing its snapshot.

    `base` is any run of the sweep, or the run that the sweep was created from. Raises UsageError, NotFound.
    """
    if planned.id in runs.ids(repo):
        # A kill came after the publication of the run, and before its first attempt.
        return runs.load(repo, planned.id)
    values = list(sweep_grid.combinations(sweep.axes))[planned.position]
    changes = [f"{key}={value}" for key, value in values.items()]
    snapshot, spec = overrides.change(repo, sweep.snapshot, base.spec, changes, OPTION)
    return Run(
        id=planned.id,
        snapshot=snapshot,
        spec=spec,
        parent=fork.with_changes(repo, base.parent, snapshot, spec) if base.parent is not None else None,
        name=planned.name,
        created_s=time.time(),
        sweep=msgspec.structs.replace(sweep, position=planned.position),
    )
