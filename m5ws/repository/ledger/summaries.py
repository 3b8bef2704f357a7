"""Summaries of ended attempts: all events but the many, so that a long attempt is read by a few requests.

A summary is derived from the ledger and counts only while the launcher's chain has the length that is in its key.
Verdicts and attestations rest on the ledger itself.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from m5ws.errors import NotFound, ObjectExists
from m5ws.records.ledger import AnyEvent, AttemptEnded, State, Step
from m5ws.records.summary import AttemptSummary
from m5ws.repository import bindings
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.losses import LossRange, LossTracker
from m5ws.repository.repository import Repository

_MOST_BYTES = 32 * 2**20
"""An attempt with more than this has no summary, and is read from its ledger."""


class ChainSummary:
    """The events of one chain that a summary holds: all but states, and of many steps the last."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._step: bytes | None = None
        self._losses = LossTracker()

    def add(self, stored: bytes, event: AnyEvent) -> None:
        """Take in one event, in the order of the chain."""
        if isinstance(event, Step):
            self._step = stored
            self._losses.add(event)
        elif not isinstance(event, State):
            self._events.append(stored)

    @property
    def stored(self) -> tuple[msgspec.Raw, ...]:
        """The events as stored; the step is the last."""
        steps = [] if self._step is None else [self._step]
        return tuple(map(msgspec.Raw, (*self._events, *steps)))

    @property
    def losses(self) -> LossRange:
        """The range of the losses of all steps. It is not part of the stored summary."""
        return self._losses.range

    @property
    def events(self) -> list[AnyEvent]:
        """The same events, decoded."""
        return [ledger.decode_event(raw) for raw in self.stored]


def key(run: str, attempt: int, batches: int) -> str:
    """Return the key of a summary that covers `batches` of the launcher's chain."""
    return f"runs/{run}/summaries/{attempt:04d}-{batches:08d}"


def read(repo: Repository, run: str, attempt: int, rank: str) -> ChainSummary:
    """Return the events of a chain that belong to a summary, from the ledger. Raises CorruptObject."""
    summary = ChainSummary()
    for batch in ledger.read(repo, run, attempt, rank):
        for raw in batch.events:
            summary.add(bytes(raw), ledger.decode_event(raw))
    return summary


def write(repo: Repository, run: str, attempt: int, ranks: Mapping[str, ChainSummary]) -> AttemptSummary | None:
    """Store the summary of an attempt that has ended, once; None if it has no end. `ranks` are its ranks' chains."""
    batches = [*ledger.read(repo, run, attempt, LAUNCHER)]
    launcher = ChainSummary()
    for raw in (raw for batch in batches for raw in batch.events):
        launcher.add(bytes(raw), ledger.decode_event(raw))
    chains = {rank: telling.stored for rank, telling in ranks.items()} | {LAUNCHER: launcher.stored}
    summary = AttemptSummary(run=run, attempt=attempt, batches=len(batches), chains=chains)
    if not any(isinstance(event, AttemptEnded) for event in events(summary, LAUNCHER)):
        return None
    where = key(run, attempt, len(batches))
    if sum(len(bytes(raw)) for chain in chains.values() for raw in chain) <= _MOST_BYTES:
        with suppress(ObjectExists):
            bindings.create(repo.store, where, summary)
    return summary


def load(repo: Repository, run: str, attempt: int) -> AttemptSummary | None:
    """Return the summary of an attempt as it is now, or None: two requests. Raises CorruptObject, Misplaced."""
    prefix = f"runs/{run}/ledger/{attempt:04d}/{LAUNCHER}/"
    batches = sum(map(ledger.is_number, repo.store.names(prefix)))
    try:
        return bindings.record(repo.store, key(run, attempt, batches), AttemptSummary)
    except NotFound:
        return None


def events(summary: AttemptSummary, rank: str) -> list[AnyEvent]:
    """Return the events of a rank in a summary, in order, the last step at the end."""
    return [ledger.decode_event(raw) for raw in summary.chains.get(rank, ())]


def last_step(chain: Iterable[AnyEvent]) -> Step | None:
    """Return the last step among events."""
    return next((event for event in reversed([*chain]) if isinstance(event, Step)), None)
