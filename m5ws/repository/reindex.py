"""Completes the index and the summaries of attempts, after a kill."""

from contextlib import suppress
from functools import partial

from m5ws.errors import UNREADABLE, NotFound
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.references import run_index, runs, snapshots
from m5ws.repository.references.parameters import ParameterReader
from m5ws.repository.references.run_index import RunFacts
from m5ws.repository.repository import Repository


def fill(repo: Repository, progress: Progress | None = None) -> int:
    """Complete the index, and return the number of runs and snapshots that it lacked. Damaged records are left out."""
    index, names = run_index.load(repo), runs.ids(repo)
    listed = {name for name, _ in snapshots.newest(repo)}
    unlisted = [name for name in snapshots.ids(repo) if name not in listed]
    filled = sum(concurrency.for_each(partial(_fill_snapshot, repo), unlisted))
    for position, lacked in enumerate(
        concurrency.for_each(lambda run: _fill(repo, run, index.get(run, RunFacts())), names)
    ):
        filled += lacked
        report(progress, "indexing runs", position, len(names))
    return filled


def _fill_snapshot(repo: Repository, snapshot_id: Digest) -> bool:
    try:
        snapshot = snapshots.load(repo, snapshot_id)
        for annotation in snapshots.annotations(repo, snapshot_id):
            snapshots.write_index(repo, snapshot_id, snapshot, annotation)
    except UNREADABLE:
        return False
    return True


def _fill(repo: Repository, run_id: str, known: RunFacts) -> bool:
    """Complete the index of a run; return True if it was incomplete. A damaged run is left out."""
    try:
        run, lacked = runs.load(repo, run_id), known.created is None
        if lacked:
            run_index.write_created(repo, run)
        if known.parameters is None:
            with suppress(NotFound):  # The snapshot of a run may be in another store.
                run_index.write(repo, run, parameters=ParameterReader(repo).of_run(run))
        if known.outcome is None and (verdict := runs.verdict(repo, run)) is not None:
            run_index.write_verdict(repo, verdict)
            lacked = True
        is_final = known.ended is not None and known.ended.is_final
        for attempt in () if is_final else ledger.attempts(repo, run_id):
            if attempt not in known.losses:
                run_index.write(repo, run, begun=attempt)
                run_index.write_ended(repo, run_id, attempt, *summaries.read(repo, run_id, attempt))
                lacked = True
    except UNREADABLE:
        return False
    return lacked
