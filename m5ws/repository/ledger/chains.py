"""One chain of a ledger, followed to its end, with a check of the order of its events.

A chain whose hashes were all recomputed is consistent in itself. It is compared with the heads in other places: the
attempt's last event, checkpoints and attestations.
"""

import hashlib
from collections.abc import Container

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.ledger import AnyEvent, AttemptEnded, AttemptStarted, CheckpointPublished, Notice, OutputsStored
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import chain, genesis
from m5ws.repository.ledger.summaries import ChainSummary
from m5ws.repository.repository import Repository


class Chain:
    """A chain, as far as it was followed. The first `batches` and `events` are valid, and `head` follows the last
    event.

    `passed` has the requested heads that the chain contains, each with its position: the number of events, the number
    of complete batches, and the SHA-256 of the stored bytes of these batches.
    """

    def __init__(self, run: str, attempt: int, rank: str) -> None:
        self.run, self.attempt, self.rank = run, attempt, rank
        self.head = genesis(run, attempt, rank)
        self.batches = 0
        self.events = 0
        self.ended: AttemptEnded | None = None
        self.observed: list[Digest] = []
        self.published: list[CheckpointPublished] = []
        self.outputs: list[OutputsStored] = []
        self.passed: dict[Digest, tuple[int, int, str]] = {}
        self.telling = ChainSummary()
        self._bytes = hashlib.sha256()

    @property
    def prefix(self) -> str:
        """The key of the chain, for messages."""
        return f"runs/{self.run}/ledger/{self.attempt:04d}/{self.rank}"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the stored bytes of all batches, concatenated in order."""
        return self._bytes.hexdigest()

    def follow(self, repo: Repository, wanted: Container[Digest] = ()) -> "Chain":
        """Follow the chain to its end, record the `wanted` heads on the way, and return the chain.

        Raises CorruptObject, UnknownSchema, OSError; `batches` is then the number of the invalid batch.
        """
        self._pass(wanted, self.head)
        for batch in ledger.read(repo, self.run, self.attempt, self.rank, stored=self._bytes.update):
            head = self.head
            for raw in batch.events:
                head = chain(head, bytes(raw))
                event = ledger.decode_event(raw)
                self._take(event)
                self.telling.add(bytes(raw), event)
                self.events += 1
                self._pass(wanted, head)
            self.head, self.batches = batch.head, self.batches + 1
            self._pass(wanted, self.head)
        return self

    def _pass(self, wanted: Container[Digest], head: Digest) -> None:
        if head in wanted:
            self.passed[head] = (self.events, self.batches, self.sha256)

    def _late(self) -> tuple[type, ...]:
        """Return the kinds of events that may follow the attempt's end.

        Results that were stored late have their own end.
        """
        unsaved = self.ended is not None and self.ended.outcome == "unsaved"
        return (Notice, CheckpointPublished, OutputsStored, AttemptEnded) if unsaved else (Notice,)

    def _take(self, event: AnyEvent) -> None:
        """Process an event. Raises CorruptObject for an event that is never written at its place."""
        place = f"event {self.events + 1} of {self.prefix}"
        if isinstance(event, AttemptStarted):
            self.observed.append(event.observed)
        if isinstance(event, CheckpointPublished):
            self.published.append(event)
        if isinstance(event, OutputsStored):
            self.outputs.append(event)
        if isinstance(event, AttemptStarted) and (self.events or event.attempt != self.attempt):
            raise CorruptObject(f"{place} begins the attempt, but is not its first event")
        if self.ended is not None and not isinstance(event, self._late()):
            raise CorruptObject(f"{place} comes after the attempt's end")
        if isinstance(event, AttemptStarted | AttemptEnded) and self.rank != LAUNCHER:
            raise CorruptObject(f"{place} belongs to the launcher, but is in a rank's chain")
        if isinstance(event, AttemptEnded):
            self.ended = event


def first_missing(begun: list[int]) -> int | None:
    """Return the first missing attempt before later ones. Attempts are numbered from 1, and none is ever deleted."""
    return next((number for number, attempt in enumerate(sorted(begun), 1) if attempt != number), None)
