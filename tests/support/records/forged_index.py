"""Keys of the run index that lie, with valid checks."""

import hashlib

import msgspec

from m5ws.repository.references import run_index, runs
from m5ws.repository.repository import Repository


def forged_key(run: str, text: str) -> str:
    """Return a key of a run with any text before its check."""
    check = hashlib.blake2b(f"{run}/{text}".encode(), digest_size=8).hexdigest()
    return f"{run_index.PREFIX}{run}/{text}.{check}"


def forge_creation(repo: Repository, run: str, **fields: object) -> None:
    """Replace the key of a run's creation by a key with other facts."""
    for name in run_index.names(repo, run):
        if name.startswith("created."):
            repo.store.delete(f"{run_index.PREFIX}{run}/{name}")
    fact = msgspec.structs.replace(run_index.created(runs.load(repo, run)), **fields)
    run_index.write(repo, run_index.created_key(run, fact))


def forge_end(repo: Repository, run: str, attempt: int) -> None:
    """Add the key of an attempt that has finished."""
    repo.store.create(forged_key(run, f"ended.{attempt}.finished.40.40"), b"")
