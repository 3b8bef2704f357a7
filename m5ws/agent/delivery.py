"""Delivery of a node's spools to its ledger: in order, once, and later if the store does not answer.

Spools are read every second. Checkpoints, notices, settings, starts and ends are published at once, with all earlier
events. Steps wait for a time that grows with the attempt. Each batch costs a request and a permanent key, and a month
has 2.6 million seconds.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.outputs import unsaved
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.ledger import NODE, AnyEvent, AttemptStarted, Event, State, Step
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.ledger import ChainWriter
from m5ws.repository.ledger.spool import RankHeads, SpoolReader
from m5ws.repository.ledger.summaries import OriginSummary
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
"""Waiting bytes that cause a publication."""
_log = logging.getLogger(__name__)


class Delivery:
    """Delivers the spools of a node of one attempt. Events that an earlier supervisor delivered are left out.

    `chain` is the writer of the chain, if the attempt has just begun here.
    """

    def __init__(
        self,
        repo: Repository,
        run: str,
        attempt: int,
        spools: Path,
        chain: ChainWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repo, self._run, self._attempt, self._spools, self._clock = repo, run, attempt, spools, clock
        self._seen: dict[str, SpoolReader] = {}
        self._telling: defaultdict[str, OriginSummary] = defaultdict(OriginSummary)
        self._readers: dict[str, SpoolReader] = {}
        self._writer = chain
        self._waiting_bytes = 0
        self._began_s = self._published_s = clock()
        self._last_s: float | None = None
        self._urgent = False
        self._warned = False
        self._failed = False
        self.batches = 0
        """Number of published batches."""

    def deliver(self, final: bool = False) -> list[tuple[str, AnyEvent]]:
        """Return new events with their origins, at most once a second. Publish the due events; all if `final`."""
        now = self._clock()
        if not final and self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return []
        self._last_s = now
        events = [(origin, event) for origin in self._origins() for event in self._read_events(origin)]
        if final or self._due(now):
            self._failed, self._urgent, self._published_s, self._waiting_bytes = False, False, now, 0
            self._publish()
            if self._warned and not self._failed:
                self._warned = False
                _log.warning("the store accepts the ledger again, and has all of its events")
        return events

    def append(self, events: Sequence[Event]) -> None:
        """Publish events of the node that are in no spool, after a complete delivery. Raises M5Error, OSError."""
        assert self._writer is not None
        stored = [codec.encode(event) for event in events]
        self._writer.append({NODE: stored})
        for each, event in zip(stored, events, strict=True):
            self._telling[NODE].add(each, event)

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
            writer, counts = self._writer, {origin: each.count for origin, each in self._telling.items()}
            if writer is not None and writer.counts == counts:
                origins, length = dict(self._telling), writer.seq
            else:
                origins, length = summaries.read(self._repo, self._run, self._attempt)
            run_index.write_ended(self._repo, self._run, self._attempt, origins, length)
        except (M5Error, OSError) as error:
            _log.warning("attempt %s of run %s has no summary yet: %s", self._attempt, self._run, error)

    @property
    def complete(self) -> bool:
        """Return True if the ledger took all events of the last publication."""
        return not self._failed

    def heads(self) -> dict[str, Digest]:
        """Return the head of each rank, computed from its whole spool."""
        heads = RankHeads(self._run, self._attempt)
        for origin in self._origins():
            for event in self._spool(origin).read():
                heads.add(origin, event)
        return heads.by_rank

    def _origins(self) -> list[str]:
        return sorted(path.stem for path in self._spools.glob("*.spool"))

    def _spool(self, origin: str) -> SpoolReader:
        return SpoolReader(self._spools / f"{origin}.spool")

    def _read_events(self, origin: str) -> list[AnyEvent]:
        """Return new events of an origin, without the start of the attempt, which is already published."""
        new = self._seen.setdefault(origin, self._spool(origin)).read()
        self._waiting_bytes += sum(map(len, new))
        events = [ledger.decode_event(event) for event in new]
        for stored, event in zip(new, events, strict=True):
            self._telling[origin].add(stored, event)
        self._urgent = self._urgent or not all(isinstance(event, Step | State) for event in events)
        return [event for event in events if not isinstance(event, AttemptStarted)]

    def _due(self, now: float) -> bool:
        waits_s = min(max(_INTERVAL_S, (now - self._began_s) / _SHARE), _LONGEST_S)
        return self._failed or self._urgent or self._waiting_bytes > _MOST_BYTES or now - self._published_s >= waits_s

    def _publish(self) -> None:
        """Append new events of all spools to the ledger. After a failure, the next call reads the ledger again."""
        published = False
        try:
            self._append()
            published = True
        except (M5Error, OSError) as error:
            # Training continues and the events stay in the spools. The next call tries again, in order.
            if not self._warned:
                _log.warning("the store does not accept the ledger; events are kept and delivered later: %s", error)
            self._failed = self._warned = True
        finally:
            if not published:
                # Ctrl-C gets here too, at any moment.
                self._writer = None

    def _append(self) -> None:
        if self._writer is None:
            self._writer, self._readers = ChainWriter(self._repo, self._run, self._attempt), {}
        published: Mapping[str, int] = {} if self._readers else dict(self._writer.counts)
        events = {}
        for origin in self._origins():
            pending = self._readers.setdefault(origin, self._spool(origin)).read()
            events[origin] = pending[published.get(origin, 0) :]
        if any(events.values()):
            self._writer.append(events)
            self.batches += 1
