"""Derived objects (summaries of attempts, the run index) compared with the ledger that they are derived from."""

from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.records.summary import AttemptSummary
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.references import run_index
from m5ws.repository.references.run_index import AttemptEnd


def matches(summary: AttemptSummary, chain: Chain) -> bool:
    """Return True if a summary has the events of this chain, or covers an earlier length of it."""
    if summary.batches != chain.batches:
        return summary.batches < chain.batches
    return summary.events == {origin: telling.stored for origin, telling in chain.telling.items()}


def ends(attempt: int, chain: Chain) -> tuple[AttemptEnd, ...]:
    """Return each end that an attempt has had: `unsaved` may be followed by `finished`."""
    events = chain.telling[NODE].events if NODE in chain.telling else []
    places = [place for place, event in enumerate(events, 1) if isinstance(event, AttemptEnded)]
    ended = (run_index.ended(attempt, events[:place], chain.telling.get("0")) for place in places)
    return tuple(end for end in ended if end is not None)
