"""The recorded environment of a run or attempt, for comparisons and rebuilds."""

from m5ws.errors import UsageError
from m5ws.records.environment import Observed
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository


def of_run(repo: Repository, run: str) -> Observed:
    """Return the environment before the run's first launch. Raises UsageError if none was recorded."""
    attempts = ledger.attempts(repo, run)
    return of_attempt(repo, run, attempts[0] if attempts else 1)


def of_attempt(repo: Repository, run: str, attempt: int) -> Observed:
    """Return the environment before an attempt's launch. Raises UsageError if none was recorded."""
    if (node := next(ledger.node_starts(repo, run, attempt), None)) is not None:
        return repo.objects.get_record(node.observed, Observed)
    raise UsageError(
        f"attempt {attempt} of run {run} recorded no environment", hint="A run that never started cannot be replayed."
    )
