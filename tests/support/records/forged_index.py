"""Keys of the run index that lie, with valid checks."""

import msgspec

from m5ws.repository.references import index_names, run_index, runs
from m5ws.repository.repository import Repository


def forge(repo: Repository, run: str, kind: str, value: object) -> tuple[str, ...]:
    """Add keys with any fact of a run, and return them."""
    keys = run_index.keys(runs.load(repo, run), kind, value)
    index_names.write(repo.store, keys)
    return keys


def forget(repo: Repository, run: str, kind: str) -> None:
    """Delete the keys of a run with a kind of facts."""
    for stat in [*repo.store.list(f"{run_index.folder(runs.load(repo, run))}{kind}.")]:
        repo.store.delete(stat.key)


def forge_creation(repo: Repository, run: str, **fields: object) -> None:
    """Replace the keys of a run's creation by keys with other facts."""
    forget(repo, run, "created")
    forge(repo, run, "created", msgspec.structs.replace(run_index.created(runs.load(repo, run)), **fields))


def forge_end(repo: Repository, run: str, attempt: int) -> None:
    """Add the keys of an attempt that has finished."""
    end = run_index.AttemptEnd(attempt=attempt, is_final=True, outcome="finished", last_step=40, total_steps=40)
    forge(repo, run, "ended", end)
