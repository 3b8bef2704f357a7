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
from m5ws.records.ledger import NODE, AnyEvent, AttemptEnded, AttemptStarted, Event, Moved, Phase, State, Step
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.ledger import ChainWriter
from m5ws.repository.ledger.spool import RankHeads, Spools
from m5ws.repository.ledger.summaries import OriginSummary
from m5ws.repository.references import run_index
from m5ws.repository.repository import Repository
from m5ws.waits import waits

DELIVERED = "delivered"
"""Name of a file in an attempt's directory. The file exists if the store has its ledger and results."""

_INTERVAL_S = 1.0
_SHARE = 200
"""Steps wait for 1/200 of the attempt's duration, …"""
_LONGEST_S = 60.0
"""… but at most this long. A machine that dies loses as much, and readers see steps that late."""
_LONGEST_PAUSE_S = 30.0
"""The time between publications that fail doubles up to this."""
_MOST_BYTES = 2**20
"""Waiting bytes that cause a publication."""
_log = logging.getLogger(__name__)


class Delivery:
    """Delivers the spools of a node of one attempt. Events that an earlier supervisor delivered are left out."""

    def __init__(
        self,
        repo: Repository,
        run: str,
        attempt: int,
        spools: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        node: int = 0,
    ) -> None:
        self._repo, self._run, self._attempt, self._spools, self._clock = repo, run, attempt, spools, clock
        self._node, self.nodes = node, 1
        self._seen, self._unpublished = Spools(spools), Spools(spools)
        self._telling: defaultdict[str, OriginSummary] = defaultdict(OriginSummary)
        self._writer: ChainWriter | None = None
        self._waiting_bytes = 0
        self._began_s = self._published_s = clock()
        self._last_s: float | None = None
        self._urgent = False
        self._warned = False
        self._failed = self._is_whole = False
        self._pause_s = 0.0
        self.batches = 0
        """Number of published batches."""
        self.last_s = 0.0
        """Time of the newest event."""

    def deliver(self, final: bool = False) -> list[tuple[str, AnyEvent]]:
        """Return new events with their origins, at most once a second. Publish the due events; all if `final`."""
        now = self._clock()
        if not final and self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return []
        self._last_s = now
        events = [(origin, event) for origin, new in self._seen.read().items() for event in self._take(origin, new)]
        if final or self._due(now):
            self._failed, self._urgent, self._published_s, self._waiting_bytes = False, False, now, 0
            self._publish()
            self._pause_s = min(max(_INTERVAL_S, 2 * self._pause_s), _LONGEST_PAUSE_S) if self._failed else 0.0
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
            self._tell(NODE, each, event)

    def finish(self) -> list[tuple[str, AnyEvent]]:
        """Deliver the rest after the last event. If nothing is left, mark the attempt as delivered.

        Unless the end of the attempt is whole, another node may deliver events later, so there is no summary.
        """
        delivered = self.deliver(final=True)
        if self.complete and self._is_whole and self._node == 0:
            self._summarise()
        if self.complete and not unsaved.waiting(self._spools.parent):
            (self._spools.parent / DELIVERED).touch()
        return delivered

    def _summarise(self) -> None:
        """Write the summary and index key of an attempt that has ended; without them, its ledger is read."""
        try:
            writer, counts = self._writer, {origin: each.count for origin, each in self._telling.items()}
            if self.nodes == 1 and writer is not None and writer.counts == counts:
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
        for origin, events in Spools(self._spools).read().items():
            for event in events:
                heads.add(origin, event)
        return heads.by_rank

    def _take(self, origin: str, new: Sequence[bytes]) -> list[AnyEvent]:
        """Return new events of an origin, without the start of the attempt, which is already published."""
        self._waiting_bytes += sum(map(len, new))
        events = [ledger.decode_event(event) for event in new]
        for stored, event in zip(new, events, strict=True):
            self._tell(origin, stored, event)
            self.nodes = event.nodes if isinstance(event, AttemptStarted) else self.nodes
            self.last_s = max(self.last_s, event.time_s)
        self._urgent = self._urgent or not all(isinstance(event, Step | State | Phase | Moved) for event in events)
        return [event for event in events if not isinstance(event, AttemptStarted)]

    def _tell(self, origin: str, stored: bytes, event: Event) -> None:
        self._telling[origin].add(stored, event)
        if isinstance(event, AttemptEnded):
            self._is_whole = event.is_whole

    def _due(self, now: float) -> bool:
        if self._failed:
            return now - self._published_s >= self._pause_s
        waits_s = min(max(_INTERVAL_S, (now - self._began_s) / _SHARE), _LONGEST_S)
        return self._urgent or self._waiting_bytes > _MOST_BYTES or now - self._published_s >= waits_s

    def _publish(self) -> None:
        """Append new events of all spools to the ledger. After a failure, the next call reads the ledger again."""
        published = False
        try:
            self._append()
            published = True
        except (M5Error, OSError) as error:
            # Training continues and the events stay in the spools. The next call tries again, in order.
            self._failed = True
            if not self._warned and not waits.is_away:  # An outage is already reported.
                self._warned = True
                _log.warning("the store does not accept the ledger; events are kept and delivered later: %s", error)
        finally:
            if not published:
                # Ctrl-C gets here too, at any moment.
                self._writer = None

    def _append(self) -> None:
        published: Mapping[str, int] = {}
        if self._writer is None:
            self._writer = ChainWriter(self._repo, self._run, self._attempt, self._node)
            self._unpublished = Spools(self._spools)
            published = dict(self._writer.counts)
        events = {origin: new[published.get(origin, 0) :] for origin, new in self._unpublished.read().items()}
        if any(events.values()):
            self._writer.append(events)
            self.batches += 1
