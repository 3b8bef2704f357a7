"""From the ranks' spools to the ledger: in order, once, and later if the store does not answer now."""

import logging
import time
from pathlib import Path

from m5ws.errors import M5Error
from m5ws.events import AnyEvent, RankEnded
from m5ws.records import Digest
from m5ws.repository import Repository, ledger
from m5ws.repository.spool import SpoolReader, chain, genesis

DELIVERED = "delivered"
"""A file of this name in an attempt's directory says that the ledger has all of its spools."""

_INTERVAL_S = 1.0
_log = logging.getLogger(__name__)


class Delivery:
    """Delivers one attempt's spools; what the ledger holds already, from an earlier supervisor, is left out."""

    def __init__(self, repo: Repository, run: str, attempt: int, spools: Path) -> None:
        self._repo, self._run, self._attempt, self._spools = repo, run, attempt, spools
        self._readers: dict[str, SpoolReader] = {}
        self._writers: dict[str, ledger.Writer] = {}
        self._skip: dict[str, int] = {}
        self._pending: dict[str, list[bytes]] = {}
        self._errors: list[str] = []
        self._last_s = 0.0
        self._warned = False
        self._failed = False

    def deliver(self, final: bool = False) -> list[tuple[str, AnyEvent]]:
        """Publish what is new, at most once a second unless `final`, and return it as (rank, event)."""
        if not final and time.monotonic() - self._last_s < _INTERVAL_S:
            return []
        self._last_s = time.monotonic()
        self._failed = False
        delivered: list[tuple[str, AnyEvent]] = []
        for path in sorted(self._spools.glob("*.spool")):
            events = self._deliver_rank(path.stem, path)
            delivered += [(path.stem, ledger.decode_event(event)) for event in events]
        self._errors += [event.error for _, event in delivered if isinstance(event, RankEnded) and event.error]
        return delivered

    def finish(self) -> list[tuple[str, AnyEvent]]:
        """Deliver the rest, after the last event; if nothing is left, nobody needs to look here again."""
        delivered = self.deliver(final=True)
        if self.complete:
            (self._spools.parent / DELIVERED).touch()
        return delivered

    @property
    def complete(self) -> bool:
        """Whether the ledger took everything that the last call found."""
        return not any(self._pending.values()) and not self._failed

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

    def _deliver_rank(self, rank: str, path: Path) -> list[bytes]:
        pending = self._pending.setdefault(rank, [])
        pending += self._readers.setdefault(rank, SpoolReader(path)).read()
        if not pending:
            return []
        try:
            if rank not in self._writers:
                self._writers[rank] = ledger.Writer(self._repo, self._run, self._attempt, rank)
                self._skip[rank] = self._writers[rank].events
            skipped = pending[: self._skip[rank]]
            fresh = pending[len(skipped) :]
            self._writers[rank].append(fresh)
        except (M5Error, OSError) as error:
            # Training goes on and the events stay in the spool; the next call tries again, in order.
            if not self._warned:
                _log.warning("the store does not take the ledger; it is kept and delivered later: %s", error)
            self._failed = self._warned = True
            self._writers.pop(rank, None)
            self._pending[rank] = []
            self._readers.pop(rank)
            return []
        self._warned = False
        self._skip[rank] -= len(skipped)
        self._pending[rank] = []
        return fresh
