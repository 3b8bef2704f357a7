"""Removals of runs: `removed/<run>`, each written once. A removed run keeps its record, ledger, verdict and notes.

A removal is a fence (docs/design/0037-a-removal-is-a-fence.md). A writer publishes first and reads the removals
afterwards. `rm` publishes the removal first and reads the runs afterwards. So they cannot both miss each other.
"""

import time

from m5ws import secret_gate
from m5ws.errors import Fenced
from m5ws.records import codec
from m5ws.records.removal import Removal
from m5ws.records.run import Run
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "removed/"


class Removed(Fenced):
    """A run was removed, or a run that it rests on."""

    exit_code = 6
    hint = "`m5ws show RUN` shows the record of a removed run, its ledger, and its work that is kept on this machine."


def key(run_id: str) -> str:
    """Return the key of a run's removal."""
    return f"{PREFIX}{run_id}"


def publish(repo: Repository, removal: Removal) -> None:
    """Publish the removal of a run. Raises ObjectExists if it is removed already."""
    repo.store.create(key(removal.run), codec.encode(secret_gate.masked(removal)))


def removed_runs(repo: Repository) -> frozenset[str]:
    """Return the ids of all removed runs. One listing."""
    return frozenset(repo.store.names(PREFIX))


def load(repo: Repository, run_id: str) -> Removal | None:
    """Return the removal of a run, or None. Raises CorruptObject, Misplaced, UnknownSchema."""
    return bindings.find(repo.store, key(run_id), Removal)


def origins(run: Run) -> tuple[str, ...]:
    """Return the runs that a run rests on: the run that it reproduces, and the run whose checkpoint it starts from.

    A fork of kept work rests on its own record alone: its parent was removed before.
    """
    parent = run.parent.run if run.parent is not None and not run.parent.kept else None
    return tuple(origin for origin in (run.reproduces, parent) if origin is not None)


def refuse(repo: Repository, *run_ids: str) -> None:
    """Raise Removed if one of these runs is removed. One listing, or no request without runs."""
    removed = removed_runs(repo) if run_ids else frozenset[str]()
    gone = next((run_id for run_id in run_ids if run_id in removed), None)
    if gone is not None and (removal := load(repo, gone)) is not None:
        author = f" by {removal.author}" if removal.author else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(removal.created_s))
        raise Removed(f"run {gone} was removed{author} at {when}")


def fence(repo: Repository, run_id: str) -> None:
    """Raise Removed if a run is removed, or a run that it rests on. One listing in a store without removals."""
    if removed_runs(repo):
        refuse(repo, run_id, *origins(bindings.record(repo.store, f"runs/{run_id}/run", Run)))
