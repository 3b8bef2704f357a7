"""Derived objects (summaries of attempts, the run index) compared with the ledger that they are derived from."""

from collections.abc import Mapping

from m5ws.records.ledger import AttemptEnded
from m5ws.records.summary import AttemptSummary
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.references import run_index
from m5ws.repository.references.run_index import AttemptEnd


def matches(summary: AttemptSummary, chains: Mapping[str, Chain]) -> bool:
    """Return True if a summary has the events of these chains, or covers an earlier length of the launcher's."""
    if summary.batches != chains[LAUNCHER].batches:
        return summary.batches < chains[LAUNCHER].batches
    return summary.chains == {rank: chain.telling.stored for rank, chain in chains.items()}


def ends(attempt: int, chains: Mapping[str, Chain]) -> tuple[AttemptEnd, ...]:
    """Return each end that an attempt has had: `unsaved` may be followed by `finished`."""
    events = chains[LAUNCHER].telling.events
    rank = chains["0"].telling if "0" in chains else None
    places = [place for place, event in enumerate(events, 1) if isinstance(event, AttemptEnded)]
    ended = (run_index.ended(attempt, events[:place], rank) for place in places)
    return tuple(end for end in ended if end is not None)
