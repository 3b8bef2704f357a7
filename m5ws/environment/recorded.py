"""The recorded environment of a run or attempt, for comparisons and rebuilds."""

from m5ws.errors import UsageError
from m5ws.records.environment import Observed
from m5ws.records.ledger import AttemptStarted
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.repository import Repository


def of_run(repo: Repository, run: str) -> Observed:
    """Return the environment before the run's first launch. Raises UsageError if none was recorded."""
    attempts = ledger.attempts(repo, run)
    return of_attempt(repo, run, attempts[0] if attempts else 1)


def of_attempt(repo: Repository, run: str, attempt: int) -> Observed:
    """Return the environment before an attempt's launch. Raises UsageError if none was recorded."""
    first = next(ledger.read(repo, run, attempt, LAUNCHER), None)
    started = ledger.decode_event(first.events[0]) if first is not None else None
    if isinstance(started, AttemptStarted):
        return repo.objects.get_record(started.observed, Observed)
    raise UsageError(
        f"attempt {attempt} of run {run} recorded no environment", hint="A run that never started cannot be replayed."
    )
