"""Removals of runs: `removed/<run>`, each written once. A removed run keeps its record, ledger, verdict and notes."""

from m5ws import secret_gate
from m5ws.errors import NotFound, UsageError
from m5ws.records import codec
from m5ws.records.removal import Removal
from m5ws.repository import bindings
from m5ws.repository.repository import Repository

PREFIX = "removed/"


def publish(repo: Repository, removal: Removal) -> None:
    """Publish the removal of a run. Raises ObjectExists if it is removed already."""
    repo.store.create(f"{PREFIX}{removal.run}", codec.encode(secret_gate.masked(removal)))


def removed_runs(repo: Repository) -> frozenset[str]:
    """Return the ids of all removed runs. One listing."""
    return frozenset(repo.store.names(PREFIX))


def load(repo: Repository, run_id: str) -> Removal | None:
    """Return the removal of a run, or None. Raises CorruptObject, Misplaced, UnknownSchema."""
    try:
        return bindings.record(repo.store, f"{PREFIX}{run_id}", Removal)
    except NotFound:
        return None


def refuse_removed(repo: Repository, run_id: str) -> None:
    """Raise UsageError if a run is removed: its checkpoints and output files may be deleted."""
    if load(repo, run_id) is not None:
        raise UsageError(f"run {run_id} was removed", hint=f"`m5ws show {run_id}` shows its record and its ledger.")
