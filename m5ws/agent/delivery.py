"""Delivery of the ranks' spools to the ledger: in order, once, and later if the store does not answer.

Spools are read every second. Checkpoints, notices, settings, starts and ends are published at once, with all earlier
events. Steps wait for a time that grows with the attempt. Each batch costs, for each rank, a request and a permanent
key, and a month has 2.6 million seconds.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.outputs import unsaved
from m5ws.records.base import Digest
from m5ws.records.ledger import AnyEvent, AttemptStarted, State, Step
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.spool import SpoolReader, chain, genesis
from m5ws.repository.ledger.summaries import ChainSummary
from m5ws.repository.references import run_index
from m5ws.repository.repository import Repository

DELIVERED = "delivered"
"""Name of a file in an attempt's directory. The file exists if the store has its ledger and results."""

_INTERVAL_S = 1.0
_SHARE = 200
"""Steps wait for 1/200 of the attempt's duration, …"""
_LONGEST_S = 60.0
"""… but at most this long. A machine that dies loses as much, and readers see steps that late."""
_MOST_BYTES = 2**20
"""Waiting bytes of one rank that cause a publication."""
_log = logging.getLogger(__name__)


class Delivery:
    """Delivers one attempt's spools. Events that an earlier supervisor delivered are left out."""

    def __init__(
        self, repo: Repository, run: str, attempt: int, spools: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._repo, self._run, self._attempt, self._spools, self._clock = repo, run, attempt, spools, clock
        self._seen: dict[str, SpoolReader] = {}
        self._telling: dict[str, ChainSummary] = {}
        self._readers: dict[str, SpoolReader] = {}
        self._writers: dict[str, ledger.ChainWriter] = {}
        self._skip: dict[str, int] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._began_s = self._published_s = clock()
        self._last_s: float | None = None
        self._urgent = False
        self._warned = False
        self._failed = False
        self.batches = 0
        """Number of published batches."""

    def deliver(self, final: bool = False) -> list[tuple[str, AnyEvent]]:
        """Return new events as (rank, event), at most once a second. Publish the due ones; all if `final`."""
        now = self._clock()
        if not final and self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return []
        self._last_s = now
        spools = sorted(self._spools.glob("*.spool"))
        events = [(path.stem, event) for path in spools for event in self._read_events(path.stem, path)]
        if final or self._due(now):
            self._failed, self._urgent, self._published_s = False, False, now
            self._waiting_bytes.clear()
            for path in spools:
                self._publish(path.stem, path)
            if self._warned and not self._failed:
                self._warned = False
                _log.warning("the store accepts the ledger again, and has all of its events")
        return events

    def finish(self) -> list[tuple[str, AnyEvent]]:
        """Deliver the rest after the last event. If nothing is left, mark the attempt as delivered."""
        delivered = self.deliver(final=True)
        if self.complete:
            self._summarise()
        if self.complete and not unsaved.waiting(self._spools.parent):
            (self._spools.parent / DELIVERED).touch()
        return delivered

    def _summarise(self) -> None:
        """Write the summary and index key of an attempt that has ended; without them, its ledger is read."""
        try:
            ranks = {
                rank: self._telling.get(rank) or summaries.read(self._repo, self._run, self._attempt, rank)
                for rank in ledger.ranks(self._repo, self._run, self._attempt)
                if rank != ledger.LAUNCHER
            }
            run_index.write_ended(self._repo, self._run, self._attempt, ranks)
        except (M5Error, OSError) as error:
            _log.warning("attempt %s of run %s has no summary yet: %s", self._attempt, self._run, error)

    @property
    def complete(self) -> bool:
        """Return True if the ledger took all events of the last publication."""
        return not self._failed

    def heads(self) -> dict[str, Digest]:
        """Return the head of each rank's chain, computed from its whole spool."""
        by_rank = {}
        for path in sorted(self._spools.glob("[0-9]*.spool")):
            head = genesis(self._run, self._attempt, path.stem)
            for event in SpoolReader(path).read():
                head = chain(head, event)
            by_rank[path.stem] = head
        return by_rank

    def _read_events(self, rank: str, path: Path) -> list[AnyEvent]:
        """Return a rank's new events, without the start of the attempt, which is already published."""
        new = self._seen.setdefault(rank, SpoolReader(path)).read()
        self._waiting_bytes[rank] = self._waiting_bytes.get(rank, 0) + sum(map(len, new))
        events = [ledger.decode_event(event) for event in new]
        telling = self._telling.setdefault(rank, ChainSummary())
        for stored, event in zip(new, events, strict=True):
            telling.add(stored, event)
        self._urgent = self._urgent or not all(isinstance(event, Step | State) for event in events)
        return [event for event in events if not isinstance(event, AttemptStarted)]

    def _due(self, now: float) -> bool:
        waits_s = min(max(_INTERVAL_S, (now - self._began_s) / _SHARE), _LONGEST_S)
        much = max(self._waiting_bytes.values(), default=0) > _MOST_BYTES
        return self._failed or self._urgent or much or now - self._published_s >= waits_s

    def _publish(self, rank: str, path: Path) -> None:
        """Append new events of a rank's spool to the ledger. After a failure, the next call reads the ledger again."""
        published = False
        try:
            self._append(rank, path)
            published = True
        except (M5Error, OSError) as error:
            # Training continues and the events stay in the spool. The next call tries again, in order.
            if not self._warned:
                _log.warning("the store does not accept the ledger; events are kept and delivered later: %s", error)
            self._failed = self._warned = True
        finally:
            if not published:
                # Ctrl-C gets here too, at any moment.
                self._writers.pop(rank, None)
                self._readers.pop(rank, None)

    def _append(self, rank: str, path: Path) -> None:
        pending = self._readers.setdefault(rank, SpoolReader(path)).read()
        if not pending:
            return
        if rank not in self._writers:
            self._writers[rank] = ledger.ChainWriter(self._repo, self._run, self._attempt, rank)
            self._skip[rank] = self._writers[rank].events
        skipped = pending[: self._skip[rank]]
        self._writers[rank].append(pending[len(skipped) :])
        self.batches += 1
        self._skip[rank] -= len(skipped)
