"""Completes the run index and the summaries of attempts, after a kill."""

from m5ws.errors import UNREADABLE
from m5ws.progress import Progress
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.references import run_index, runs
from m5ws.repository.references.run_index import RunFacts
from m5ws.repository.repository import Repository


def fill(repo: Repository, progress: Progress | None = None) -> int:
    """Complete the index of all runs, and return the number of incomplete runs. Damaged runs are left out."""
    index, names = run_index.load(repo), runs.ids(repo)
    filled = 0
    for position, lacked in enumerate(
        concurrency.for_each(lambda run: _fill(repo, run, index.get(run, RunFacts())), names)
    ):
        filled += lacked
        if progress:
            progress("indexing runs", position, len(names))
    return filled


def _fill(repo: Repository, run_id: str, known: RunFacts) -> bool:
    try:
        return _lacked(repo, run_id, known)
    except UNREADABLE:
        return False


def _lacked(repo: Repository, run_id: str, known: RunFacts) -> bool:
    """Complete the index of a run; return True if it was incomplete."""
    lacked = False
    run = runs.load(repo, run_id) if known.created is None or known.created.reproduces else None
    if run is not None and known.created is None:
        run_index.write_created(repo, run, run.created_s)
        lacked = True
    if run is not None and known.outcome is None and (verdict := runs.verdict(repo, run)) is not None:
        run_index.write_verdict(repo, verdict)
        lacked = True
    if known.ended is not None and known.ended.is_final:
        return lacked
    for attempt in ledger.attempts(repo, run_id):
        if attempt not in known.losses:
            run_index.write_ended(repo, run_id, attempt, *summaries.read(repo, run_id, attempt))
            lacked = True
    return lacked
