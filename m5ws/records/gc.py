"""Records of garbage collection: rules, plans and their parts, and the keeps of writers (docs/format.md)."""

from typing import Annotated

import msgspec

from m5ws.records.base import CheckpointName, Count, Digest, KeyedRecord, OutputsName, Record, RunId

_Rule = Annotated[int, msgspec.Meta(ge=1)]


class RetentionRules(Record, frozen=True, kw_only=True):
    """Checkpoints of a run that are kept: the `last` checkpoints, and checkpoints whose step is a multiple of `every`.

    Without both, all are kept. The newest checkpoint, and checkpoints that are kept by name, do not depend on the
    rules.
    """

    last: _Rule | None = None
    every: _Rule | None = None

    @property
    def retire(self) -> bool:
        return self.last is not None or self.every is not None


class RetiredReference(Record, frozen=True, kw_only=True):
    """A retired reference: to a checkpoint, by the rules, or to a copy of output files that newer files replace.

    `digest` is the digest of the record that the reference names.
    """

    run: RunId
    checkpoint: CheckpointName | None = None
    outputs: OutputsName | None = None
    digest: Digest


class PlanPart(Record, frozen=True, kw_only=True):
    """One `Garbage` object of a plan: the number of its digests, and the first and last of them."""

    first: Digest
    last: Digest
    objects: Count


class FreedAmount(Record, frozen=True, kw_only=True):
    """Numbers of checkpoints of a run, and of copies of its output files, that a plan retires."""

    run: RunId
    checkpoints: Count
    copies: Count = 0


class GcPlan(KeyedRecord, tag="gc-plan/1", frozen=True, kw_only=True):
    """Head of a plan of deletions, published after its parts.

    `references` is the number of `Retirements` objects, `kept_objects` the number of objects that are needed. `copies`
    counts retired copies of output files.
    """

    older_than_s: float
    rules: RetentionRules
    checkpoints: Count
    copies: Count = 0
    references: Count
    objects: Count
    size_bytes: Count
    parts: tuple[PlanPart, ...]
    freed: tuple[FreedAmount, ...] = ()
    kept_objects: Count = 0
    young_objects: Count = 0


class Garbage(KeyedRecord, tag="gc-garbage/1", frozen=True, kw_only=True):
    """Objects of a plan, sorted: digests of 32 bytes joined, and their sizes as 8 bytes each, little-endian."""

    digests: bytes
    sizes: bytes


class Retirements(KeyedRecord, tag="gc-retired/1", frozen=True, kw_only=True):
    """References of a plan."""

    checkpoints: tuple[RetiredReference, ...]


class Keep(KeyedRecord, tag="gc-keep/1", frozen=True, kw_only=True):
    """Objects of an open plan that a writer is about to name: digests of 32 bytes, joined."""

    digests: bytes


class GcExecution(KeyedRecord, tag="gc-executing/1", frozen=True, kw_only=True):
    """Executor of a plan: `holder` names a lock that the kernel frees when its process ends, `host` is for people."""

    holder: str
    host: str


class GcResult(KeyedRecord, tag="gc-done/1", frozen=True, kw_only=True):
    """Amounts that a plan deleted, and `spared`, the number of its objects that were needed by then. Never deleted."""

    checkpoints: int
    copies: int = 0
    objects: int
    size_bytes: int
    spared: int
