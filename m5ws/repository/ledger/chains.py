"""The chain of a node, followed to its end, with a check of the order of its events.

A chain whose hashes were all recomputed is consistent in itself. It is compared with the heads in other places: the
attempt's last event, checkpoints and attestations.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.ledger import (
    NODE,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    NodeStarted,
    OutputsStored,
)
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import RankHeads
from m5ws.repository.ledger.summaries import OriginSummary
from m5ws.repository.repository import Repository


class Order:
    """The order of the events in a node's chain, checked as they are read."""

    def __init__(self, attempt: int, node: int, prefix: str) -> None:
        self._attempt, self._node, self._prefix = attempt, node, prefix
        self.events = 0
        self.is_begun = False
        self.ended: AttemptEnded | None = None

    def take(self, origin: str, event: AnyEvent) -> None:
        """Take the next event. Raises CorruptObject for an event that is never written at its place."""
        place = f"event {self.events + 1} of {self._prefix}"
        if isinstance(event, AttemptStarted):
            if self.events or event.attempt != self._attempt:
                raise CorruptObject(f"{place} begins the attempt, but is not its first event")
            self.is_begun = True
        if self.ended is not None and not isinstance(event, self._late()):
            raise CorruptObject(f"{place} comes after the attempt's end")
        if isinstance(event, AttemptStarted | AttemptEnded) and (origin != NODE or self._node):
            raise CorruptObject(f"{place} belongs to the leader of the attempt, but has origin {origin}")
        if isinstance(event, NodeStarted) and (origin, event.node) != (NODE, self._node):
            raise CorruptObject(f"{place} begins another node, or has origin {origin}")
        if isinstance(event, AttemptEnded):
            self.ended = event
        self.events += 1

    def _late(self) -> tuple[type, ...]:
        """Return the kinds of events that may follow the attempt's end.

        Results that were stored late have their own end.
        """
        unsaved = self.ended is not None and self.ended.outcome == "unsaved"
        return (*ledger.LATE, AttemptEnded) if unsaved else ledger.LATE[:1]


class Chain:
    """A chain, as far as it was followed. The first `batches` are valid, and `head` follows the last of them.

    `order` has the number of events and the end of the attempt. `heads` has the head of each rank with events. `passed`
    has the requested heads that the ranks had. `ends` has the number of batches and of events, and the SHA-256 of the
    stored bytes, at each requested head of the node's chain.
    """

    def __init__(self, run: str, attempt: int, node: int = 0) -> None:
        self.run, self.attempt, self.node = run, attempt, node
        self.head = ledger.start_of(run, attempt, node)
        self.heads = RankHeads(run, attempt)
        self.batches = 0
        self.order = Order(attempt, node, self.prefix)
        self.observed: list[Digest] = []
        self.published: list[CheckpointPublished] = []
        self.outputs: list[OutputsStored] = []
        self.passed: set[Digest] = set()
        self.ends: dict[Digest, tuple[int, int, str]] = {}
        self.telling: defaultdict[str, OriginSummary] = defaultdict(OriginSummary)
        self._bytes = hashlib.sha256()

    @property
    def prefix(self) -> str:
        """The key of the chain, for messages."""
        return f"runs/{self.run}/ledger/{self.attempt:04d}/{self.node}"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the stored bytes of all batches, concatenated in order."""
        return self._bytes.hexdigest()

    def follow(self, repo: Repository, wanted: Container[Digest] = ()) -> "Chain":
        """Follow the chain to its end, record the `wanted` heads on the way, and return the chain.

        Raises CorruptObject, UnknownSchema, OSError; `batches` is then the number of the invalid batch.
        """
        for batch in ledger.read(repo, self.run, self.attempt, self.node, stored=self._bytes.update):
            for origin, raw in ledger.stored_events(batch):
                self._add(origin, bytes(raw), wanted)
            self.head, self.batches = batch.head, self.batches + 1
            if self.head in wanted:
                self.ends[self.head] = (self.batches, self.order.events, self.sha256)
        return self

    def _add(self, origin: str, stored: bytes, wanted: Container[Digest]) -> None:
        """Process an event. Raises CorruptObject for an event that is never written at its place."""
        event = ledger.decode_event(stored)
        if isinstance(event, NodeStarted):
            self.observed.append(event.observed)
        if isinstance(event, CheckpointPublished):
            self.published.append(event)
        if isinstance(event, OutputsStored):
            self.outputs.append(event)
        self.order.take(origin, event)
        self.telling[origin].add(stored, event)
        if (head := self.heads.add(origin, stored)) is not None and head in wanted:
            self.passed.add(head)


def find_faults(chains: Sequence[Chain], heads: Mapping[Digest, str]) -> Iterator[str]:
    """Yield the faults of the ends of an attempt's ranks, from the chains of its nodes. None before its end.

    `heads` come from its checkpoints, with the checkpoints' names.
    """
    leader = chains[0]
    if leader.order.ended is None:
        return
    try:
        stored = {rank: head for chain in chains for rank, head in chain.heads.by_rank.items()}
        ledger.check_heads(leader.run, leader.attempt, leader.order.ended, stored)
    except CorruptObject as error:
        yield str(error)
    # If an attempt failed, a machine may have died with the last events that checkpoints refer to.
    if leader.order.ended.outcome != "failed":
        passed = set[Digest]().union(*(chain.passed for chain in chains))
        for name in sorted({heads[head] for head in heads.keys() - passed}):
            yield f"checkpoint {name} has another ledger head"


def first_missing(begun: list[int]) -> int | None:
    """Return the first missing attempt before later attempts. Numbers begin at 1, and no attempt is ever deleted."""
    return next((number for number, attempt in enumerate(sorted(begun), 1) if attempt != number), None)
