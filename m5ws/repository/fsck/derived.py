"""Derived objects (summaries of attempts, the run index) compared with the ledger that they are derived from."""

from collections.abc import Iterator, Sequence

from msgspec import Raw

from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.records.summary import AttemptSummary
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.references import run_index
from m5ws.repository.references.run_index import AttemptEnd


def matches(summary: AttemptSummary, chains: Sequence[Chain]) -> bool:
    """Return True if a summary has the events of the chains of all nodes, or covers an earlier length of the first."""
    if summary.batches != chains[0].batches:
        return summary.batches < chains[0].batches
    origins = {origin for chain in chains for origin in chain.telling}
    return summary.events == {origin: tuple(_stored(origin, chains)) for origin in origins}


def _stored(origin: str, chains: Sequence[Chain]) -> Iterator[Raw]:
    for chain in chains:
        yield from chain.telling[origin].stored if origin in chain.telling else ()


def ends(attempt: int, chain: Chain) -> tuple[AttemptEnd, ...]:
    """Return each end that an attempt has had: `unsaved` may be followed by `finished`."""
    events = chain.telling[NODE].events if NODE in chain.telling else []
    places = [place for place, event in enumerate(events, 1) if isinstance(event, AttemptEnded)]
    ended = (run_index.ended(attempt, events[:place], chain.telling.get("0")) for place in places)
    return tuple(end for end in ended if end is not None)
