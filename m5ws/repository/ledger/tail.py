"""Reads the ledger of a run as it grows: each event once, in the order of its origin."""

from collections.abc import Iterator

import msgspec

from m5ws.records.ledger import AnyEvent, Batch
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository


class LedgerTail:
    """The ledger of a run, of all nodes `but` one. Memory does not grow with the events that were read."""

    def __init__(self, repo: Repository, run: str, but: int | None = None) -> None:
        self._repo, self._run, self._but = repo, run, but
        self._last: dict[tuple[int, int], Batch] = {}
        self._closed: set[int] = set()

    def poll(self) -> Iterator[tuple[int, str, AnyEvent]]:
        """Yield new events as (attempt, origin, event). Raises CorruptObject where a chain is broken."""
        attempts = ledger.attempts(self._repo, self._run)
        for attempt in attempts:
            if attempt not in self._closed:
                yield from self._attempt(attempt)
        # An attempt that was not the newest before it was read does not grow.
        self._closed.update(attempts[:-1])

    def _attempt(self, attempt: int) -> Iterator[tuple[int, str, AnyEvent]]:
        for node in ledger.nodes(self._repo, self._run, attempt):
            if node == self._but:
                continue
            last = self._last.get((attempt, node))
            chain = (self._repo, self._run, attempt, node)
            for batch in ledger.read(*chain) if last is None else ledger.read_newer(*chain, last):
                # After an error, the next poll begins with the same batch.
                events = [*ledger.decode(batch)]
                self._last[attempt, node] = msgspec.structs.replace(batch, events=msgspec.Raw())
                yield from ((attempt, origin, event) for origin, event in events)
