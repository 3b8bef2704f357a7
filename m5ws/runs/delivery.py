"""From the ranks' spools to the ledger: in order, once, and later if the store does not answer now.

What ranks say is read each second, for whoever watches. It is published at once where it matters (checkpoints, notices,
settings, beginnings and ends, with all that was said before them), and steps after a while that grows with the
attempt: a batch is a request to the store and a key in it for ever, for each rank, and a month has 2.6 million seconds.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.records.base import Digest
from m5ws.records.ledger import AnyEvent, AttemptStarted, RankEnded, State, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, chain, genesis
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import unsaved

DELIVERED = "delivered"
"""A file of this name in an attempt's directory says that the store has its ledger and results."""

_INTERVAL_S = 1.0
_SHARE = 200
"""Steps wait for a two-hundredth of the time that the attempt has taken, …"""
_LONGEST_S = 60.0
"""… or so long: what a machine that dies takes with it of them, and by how much others see them late."""
_MOST_BYTES = 2**20
"""So much of one rank is not kept waiting."""
_log = logging.getLogger(__name__)


class Delivery:
    """Delivers one attempt's spools; what the ledger holds already, from an earlier supervisor, is left out."""

    def __init__(
        self, repo: Repository, run: str, attempt: int, spools: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._repo, self._run, self._attempt, self._spools, self._clock = repo, run, attempt, spools, clock
        self._seen: dict[str, SpoolReader] = {}
        self._readers: dict[str, SpoolReader] = {}
        self._writers: dict[str, ledger.Writer] = {}
        self._skip: dict[str, int] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._errors: list[str] = []
        self._began_s = self._published_s = clock()
        self._last_s: float | None = None
        self._urgent = False
        self._warned = False
        self._failed = False
        self.batches = 0
        """How many batches this published."""

    def deliver(self, final: bool = False) -> list[tuple[str, AnyEvent]]:
        """Return what is new as (rank, event), looked for once a second, and publish what is due; all if `final`."""
        now = self._clock()
        if not final and self._last_s is not None and now - self._last_s < _INTERVAL_S:
            return []
        self._last_s = now
        spools = sorted(self._spools.glob("*.spool"))
        said = [(path.stem, event) for path in spools for event in self._said(path.stem, path)]
        self._errors += [event.error for _, event in said if isinstance(event, RankEnded) and event.error]
        if final or self._due(now):
            self._failed, self._urgent, self._published_s = False, False, now
            self._waiting_bytes.clear()
            for path in spools:
                self._publish(path.stem, path)
        return said

    def finish(self) -> list[tuple[str, AnyEvent]]:
        """Deliver the rest, after the last event; if nothing is left, nobody needs to look here again."""
        delivered = self.deliver(final=True)
        if self.complete and not unsaved.waiting(self._spools.parent):
            (self._spools.parent / DELIVERED).touch()
        return delivered

    @property
    def complete(self) -> bool:
        """Whether the ledger took everything that the last call that published found."""
        return not self._failed

    def heads(self) -> dict[str, Digest]:
        """Return where each rank's chain ends, read from its whole spool."""
        found = {}
        for path in sorted(self._spools.glob("[0-9]*.spool")):
            head = genesis(self._run, self._attempt, path.stem)
            for event in SpoolReader(path).read():
                head = chain(head, event)
            found[path.stem] = head
        return found

    def first_error(self) -> str | None:
        """Return the first error that a rank reported, or None."""
        return self._errors[0] if self._errors else None

    def _said(self, rank: str, path: Path) -> list[AnyEvent]:
        """Return what a rank has said since the last look, but for the attempt's beginning: it was published before."""
        found = self._seen.setdefault(rank, SpoolReader(path)).read()
        self._waiting_bytes[rank] = self._waiting_bytes.get(rank, 0) + sum(map(len, found))
        events = [ledger.decode_event(event) for event in found]
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
            self._warned = False
        except (M5Error, OSError) as error:
            # Training goes on and the events stay in the spool; the next call tries again, in order.
            if not self._warned:
                _log.warning("the store does not take the ledger; it is kept and delivered later: %s", error)
            self._failed = self._warned = True
        finally:
            if not published:
                # Ctrl-C comes here too, at any moment.
                self._writers.pop(rank, None)
                self._readers.pop(rank, None)

    def _append(self, rank: str, path: Path) -> None:
        pending = self._readers.setdefault(rank, SpoolReader(path)).read()
        if not pending:
            return
        if rank not in self._writers:
            self._writers[rank] = ledger.Writer(self._repo, self._run, self._attempt, rank)
            self._skip[rank] = self._writers[rank].events
        skipped = pending[: self._skip[rank]]
        self._writers[rank].append(pending[len(skipped) :])
        self.batches += 1
        self._skip[rank] -= len(skipped)
