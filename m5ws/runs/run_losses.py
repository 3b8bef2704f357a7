"""Losses of runs in lists: from the run index, and of attempts that have not ended from the ledger."""

from collections.abc import Iterable

from m5ws.records.ledger import Step
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.losses import LossRange, LossTracker
from m5ws.repository.references.run_index import RunFacts
from m5ws.repository.repository import Repository

_MOST_BATCHES = 256
"""A running attempt with a longer ledger has no lowest loss until it ends."""


def of_run(repo: Repository, run_id: str, facts: RunFacts, attempts: int) -> LossRange:
    """Return the last loss of the newest attempt that has one, and the lowest of all attempts."""
    known = facts.losses
    every = known if len(known) >= attempts else ledger.attempts(repo, run_id)
    return _join(known.get(attempt) or recorded_losses(repo, run_id, attempt) for attempt in sorted(every))


def recorded_losses(repo: Repository, run_id: str, attempt: int) -> LossRange:
    """Return the losses of rank 0 in an attempt from its ledger; of a very long one the last loss alone."""
    batches = list[LossRange]()
    for number, batch in enumerate(ledger.backwards(repo, run_id, attempt)):
        if number >= _MOST_BATCHES:
            return LossRange(last=_join(batches).last)
        tracker = LossTracker()
        for _, event in ledger.decode(batch, ("0",)):
            if isinstance(event, Step):
                tracker.add(event)
        batches.insert(0, tracker.range)
    return _join(batches)


def _join(ranges: Iterable[LossRange]) -> LossRange:
    """Return the range of losses of parts, in their order."""
    parts = list(ranges)
    last = next((part.last for part in reversed(parts) if part.last is not None), None)
    lowest = [(part.lowest, part.lowest_step) for part in parts if part.lowest is not None]
    best, step = min(lowest, key=lambda pair: pair[0], default=(None, None))
    return LossRange(last=last, lowest=best, lowest_step=step)
