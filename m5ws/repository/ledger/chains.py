"""One chain of a ledger, followed to its end: where it stands, and whether such events are ever written in that order.

A chain that was computed anew holds together by itself. What others say of it (the heads in an attempt's last event, in
checkpoints and in attestations) is what it is measured by.
"""

import hashlib
from collections.abc import Container

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.ledger import AnyEvent, AttemptEnded, AttemptStarted, CheckpointPublished, Notice, OutputsStored
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import chain, genesis
from m5ws.repository.repository import Repository


class Chain:
    """A chain as far as it was followed: `batches` and `events` of it are good, and `head` is after the last of them.

    `passed` holds the heads that were looked for and met, each with where: after how many events, of how many batches
    that are whole there, and the SHA-256 of the stored bytes of these.
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
        self._bytes = hashlib.sha256()

    @property
    def prefix(self) -> str:
        """The key of the chain, as people are told of it."""
        return f"runs/{self.run}/ledger/{self.attempt:04d}/{self.rank}"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the stored bytes of all batches, joined in order."""
        return self._bytes.hexdigest()

    def follow(self, repo: Repository, wanted: Container[Digest] = ()) -> "Chain":
        """Go to the end, and note which of the `wanted` heads lie on the way; return itself.

        Raises CorruptObject, UnknownSchema, OSError: `batches` is then the number of the batch that is wrong.
        """
        self._pass(wanted, self.head)
        for batch in ledger.read(repo, self.run, self.attempt, self.rank, stored=self._bytes.update):
            head = self.head
            for raw in batch.events:
                head = chain(head, bytes(raw))
                self._take(ledger.decode_event(raw))
                self.events += 1
                self._pass(wanted, head)
            self.head, self.batches = batch.head, self.batches + 1
            self._pass(wanted, self.head)
        return self

    def _pass(self, wanted: Container[Digest], head: Digest) -> None:
        if head in wanted:
            self.passed[head] = (self.events, self.batches, self.sha256)

    def _late(self) -> tuple[type, ...]:
        """Return the kinds of events that may follow the attempt's end: results that were stored late have an end."""
        unsaved = self.ended is not None and self.ended.outcome == "unsaved"
        return (Notice, CheckpointPublished, OutputsStored, AttemptEnded) if unsaved else (Notice,)

    def _take(self, event: AnyEvent) -> None:
        """Note what an event says of the chain. Raises CorruptObject for one that is never written there."""
        place = f"event {self.events + 1} of {self.prefix}"
        if isinstance(event, AttemptStarted):
            self.observed.append(event.observed)
        if isinstance(event, CheckpointPublished):
            self.published.append(event)
        if isinstance(event, OutputsStored):
            self.outputs.append(event)
        if isinstance(event, AttemptStarted) and (self.events or event.attempt != self.attempt):
            raise CorruptObject(f"{place} begins the attempt, which is not what was written there")
        if self.ended is not None and not isinstance(event, self._late()):
            raise CorruptObject(f"{place} comes after the attempt's end")
        if isinstance(event, AttemptStarted | AttemptEnded) and self.rank != LAUNCHER:
            raise CorruptObject(f"{place} is the launcher's, and in a rank's chain")
        if isinstance(event, AttemptEnded):
            self.ended = event


def gap(begun: list[int]) -> int | None:
    """Return the first attempt that is missing before others: they are numbered from 1, and none is ever deleted."""
    return next((number for number, attempt in enumerate(sorted(begun), 1) if attempt != number), None)
