"""Output files of a run that began without `[run] outputs`: in its work directory, on its machine only.

A resume restores them if `[run] outputs` of m5ws.toml names them now.
"""

from collections.abc import Sequence
from pathlib import Path

from m5ws.agent import run_lock
from m5ws.outputs import collect, storing
from m5ws.records.run import Run
from m5ws.repository.ledger import ledger
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.repository import Repository


def store(repo: Repository, run: Run, home: Path, declared: Sequence[str]) -> None:
    """Store the files `declared` of a run's newest attempt, which ended, if it ran in `home`, the workspace's `.m5ws`.

    Raises M5Error, OSError.
    """
    attempt = max(ledger.attempts(repo, run.id), default=0)
    directory = home / "runs" / run.id / f"{attempt:04d}"
    if stored_outputs.name(attempt) in stored_outputs.names(repo, run.id):
        return
    if run_lock.is_own(repo, run.id, attempt, directory):
        left = collect.collect_left(directory, declared)
        if left is not None:
            storing.publish(repo, run, attempt, left)
