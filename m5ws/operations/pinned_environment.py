"""The environment that a run's first attempt observed: what a replay's is held against, or made again from."""

from m5ws.errors import UsageError
from m5ws.events import AttemptStarted
from m5ws.records import Observed
from m5ws.repository import Repository, ledger
from m5ws.repository.ledger import LAUNCHER


def of_run(repo: Repository, run: str) -> Observed:
    """Return what was observed before the run's first launch. Raises UsageError if nothing was recorded."""
    attempts = ledger.attempts(repo, run)
    for event in ledger.events(repo, run, attempts[0], LAUNCHER) if attempts else ():
        if isinstance(event, AttemptStarted):
            return repo.objects.get_record(event.observed, Observed)
    raise UsageError(
        f"the first attempt of run {run} recorded no environment", hint="A run that never started cannot be done again."
    )
