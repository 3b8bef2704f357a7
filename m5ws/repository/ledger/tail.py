"""Reads the ledger of a run as it grows: each event once, each chain in order."""

from collections.abc import Iterator

import msgspec

from m5ws.records.ledger import AnyEvent, Batch
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository


class LedgerTail:
    """The ledger of a run. Memory does not grow with the events that were read."""

    def __init__(self, repo: Repository, run: str) -> None:
        self._repo, self._run = repo, run
        self._last: dict[tuple[int, str], Batch] = {}
        self._closed: set[int] = set()

    def poll(self) -> Iterator[tuple[int, str, AnyEvent]]:
        """Yield new events as (attempt, rank, event). Raises CorruptObject where a chain is broken."""
        attempts = ledger.attempts(self._repo, self._run)
        for attempt in attempts:
            if attempt not in self._closed:
                yield from self._attempt(attempt)
        # An attempt that was not the newest before it was read does not grow.
        self._closed.update(attempts[:-1])

    def _attempt(self, attempt: int) -> Iterator[tuple[int, str, AnyEvent]]:
        # The launcher first. A reader of its last event then reads all earlier events of the ranks.
        for rank in sorted(ledger.ranks(self._repo, self._run, attempt), key=lambda rank: rank != ledger.LAUNCHER):
            last = self._last.get((attempt, rank))
            read = ledger.read_newer if last is not None else ledger.read
            for batch in read(self._repo, self._run, attempt, rank, after=last):
                self._last[attempt, rank] = msgspec.structs.replace(batch, events=())
                for event in batch.events:
                    yield attempt, rank, ledger.decode_event(event)
