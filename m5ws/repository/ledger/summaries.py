"""Summaries of ended attempts: all events but the many, so that a long attempt is read by a few requests.

A summary is derived from the ledger and counts only while the chain of node 0 has the length that is in its key.
Verdicts and attestations rest on the ledger itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from m5ws.errors import CorruptObject, NotFound, ObjectExists
from m5ws.records.ledger import NODE, AnyEvent, AttemptEnded, Event, State, Step
from m5ws.records.summary import AttemptSummary
from m5ws.repository import bindings
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.losses import LossRange, LossTracker
from m5ws.repository.repository import Repository

_MOST_BYTES = 32 * 2**20
"""An attempt with more than this has no summary, and is read from its ledger."""


class OriginSummary:
    """The events of one origin that a summary holds: all but states, and of many steps the last.

    `count` is the number of all of its events.
    """

    def __init__(self) -> None:
        self.count = 0
        self._events: list[bytes] = []
        self._step: bytes | None = None
        self._losses = LossTracker()

    def add(self, stored: bytes, event: Event) -> None:
        """Take in one event, in the order of the origin."""
        self.count += 1
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
    """Return the key of a summary that covers `batches` of the chain of node 0."""
    return f"runs/{run}/summaries/{attempt:04d}-{batches:08d}"


def read(repo: Repository, run: str, attempt: int) -> tuple[dict[str, OriginSummary], int]:
    """Return the events by origin that belong to a summary, and the number of batches of node 0, from the ledger.

    Raises CorruptObject.
    """
    origins, length = defaultdict[str, OriginSummary](OriginSummary), 0
    for node in ledger.nodes(repo, run, attempt):
        for batch in ledger.read(repo, run, attempt, node):
            length += node == 0
            for origin, raw in ledger.stored_events(batch):
                origins[origin].add(bytes(raw), ledger.decode_event(raw))
    return origins, length


def write(repo: Repository, run: str, attempt: int, origins: Mapping[str, OriginSummary], length: int) -> bool:
    """Store the summary of an attempt that has ended, as `read` returns it, once. Return False if it has no end."""
    if NODE not in origins or not any(isinstance(event, AttemptEnded) for event in origins[NODE].events):
        return False
    events = {origin: telling.stored for origin, telling in origins.items()}
    if sum(len(bytes(raw)) for stored in events.values() for raw in stored) <= _MOST_BYTES:
        with suppress(ObjectExists):
            summary = AttemptSummary(run=run, attempt=attempt, batches=length, events=events)
            bindings.create(repo.store, key(run, attempt, length), summary)
    return True


def load(repo: Repository, run: str, attempt: int) -> dict[str, list[AnyEvent]]:
    """Return the events by origin that belong to a summary, from the summary as it is now: two requests.

    They are read from the ledger if there is none. The origins are sorted, so a node's own events come last. Raises
    CorruptObject, Misplaced.
    """
    length = sum(map(bindings.is_number, repo.store.names(f"runs/{run}/ledger/{attempt:04d}/0/")))
    try:
        stored = bindings.record(repo.store, key(run, attempt, length), AttemptSummary).events
    except NotFound:
        return {origin: telling.events for origin, telling in sorted(read(repo, run, attempt)[0].items())}
    return {origin: [*map(ledger.decode_event, events)] for origin, events in stored.items()}


def check_unended(repo: Repository, run: str, attempt: int) -> None:
    """Raise CorruptObject if an attempt without an end has a summary, which is written after the end alone."""
    is_known = any(name.startswith(f"{attempt:04d}-") for name in repo.store.names(f"runs/{run}/summaries/"))
    # The attempt may have ended since its ledger was read.
    if is_known and ledger.ended(repo, run, attempt) is None:
        raise CorruptObject(
            f"the ledger of attempt {attempt} of run {run} lacks its end, which a summary has",
            hint="Batches are missing. Run `m5ws fsck` to list all damage.",
        )


def last_step(events: Iterable[AnyEvent]) -> Step | None:
    """Return the last step among events."""
    return next((event for event in reversed([*events]) if isinstance(event, Step)), None)
