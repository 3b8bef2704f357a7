"""What a ledger says: the events of a run, in order, and the batches in which they are published."""

from typing import Literal

import msgspec

from m5ws.records.base import CheckpointName, Count, Digest, OutputsName, Record


class Event(Record, frozen=True, kw_only=True):
    """Base of ledger events; `time_s` is seconds since the epoch and never compared."""

    time_s: float = 0.0


class AttemptStarted(Event, tag="attempt-started", frozen=True, kw_only=True):
    """Written by the launcher as the first event of an attempt; fences all earlier attempts.

    `inherits` is every earlier checkpoint name that counts; one that an earlier attempt publishes later does not.
    """

    attempt: Count
    host: str
    observed: Digest
    inherits: tuple[CheckpointName, ...] = ()
    resume: CheckpointName | None = None


class RankStarted(Event, tag="rank-started", frozen=True, kw_only=True):
    """A rank is up; `facts` are effective values inside it (threads, capability, loaded libraries)."""

    rank: int
    world: int
    pid: int
    facts: dict[str, str | None] = msgspec.field(default_factory=dict)


class Step(Event, tag="step", frozen=True, kw_only=True):
    """One optimizer step, numbered from 1. `quantities` are exact (`float.hex()`), `batch` digests what was fed.

    `tokens` and `seconds` are for people and never compared. `total` is the planned number of steps, if known.
    """

    step: int
    quantities: dict[str, str]
    batch: Digest | None = None
    tokens: int = 0
    seconds: float = 0.0
    total: int | None = None


class State(Event, tag="state", frozen=True, kw_only=True):
    """Fingerprints after `step` (0: before the first).

    `tensors` by name, summed over ranks, on rank 0 only; `generators` digests each RNG of this rank.
    `restored` marks a state read back from a checkpoint.
    """

    step: int
    tensors: dict[str, str] = msgspec.field(default_factory=dict)
    generators: dict[str, str] = msgspec.field(default_factory=dict)
    restored: bool = False


class CheckpointPublished(Event, tag="checkpoint", frozen=True, kw_only=True):
    """A checkpoint can be found from now on, under `name`; `content` is equal for equal states.

    `seconds` it took from the copy of the state on; for `stalled_s` of them, and before, the training stood still.
    `outputs`: it holds the files that the script wrote by the end of the attempt, and no state. Older builds
    published these as checkpoints; now they are `OutputsStored`.
    """

    step: Count
    name: CheckpointName
    checkpoint: Digest
    content: Digest
    seconds: float = 0.0
    stalled_s: float = 0.0
    outputs: bool = False


class OutputsStored(Event, tag="outputs", frozen=True, kw_only=True):
    """The files that the script wrote by the end of the attempt are stored: `record` is an `OutputFiles`' digest."""

    name: OutputsName
    record: Digest
    content: Digest


class Notice(Event, tag="notice", frozen=True, kw_only=True):
    """Something a person should see: a failed save, an inexact resume, a modified input, a limit."""

    kind: str
    message: str
    step: int | None = None
    rank: int | None = None


OTHER_ENVIRONMENT = "other-environment"
"""Kind of the launcher's notice that a later attempt runs in another environment than the first."""


class Setting(Event, tag="setting", frozen=True, kw_only=True):
    """A value that can change bits and that was another before this step: the script, or a library, has set it."""

    rank: int
    step: int
    name: str
    value: str


class Imported(Event, tag="imported", frozen=True, kw_only=True):
    """What a rank has loaded since it last said so, its forked workers with it.

    `modules` are places of installed modules and libraries, as in `Observed.provides`; `libraries` the paths of loaded
    native libraries, as in `RankStarted.facts` (`loaded.NAME`).
    """

    rank: int
    modules: tuple[str, ...] = ()
    libraries: dict[str, str | None] = msgspec.field(default_factory=dict)


class RankEnded(Event, tag="rank-ended", frozen=True, kw_only=True):
    """A rank left; `error` is None when its script ended well."""

    rank: int
    error: str | None = None


class AttemptEnded(Event, tag="attempt-ended", frozen=True, kw_only=True):
    """Written by the launcher as the last event. `outcome` is how the attempt ended.

    "unsaved": the ranks did all that they had to, and the store did not take what they ended with (the last checkpoint,
    or output files). If that is stored later, a second event of this kind follows, "finished".
    `heads` is where each rank's chain ended, so that a chain whose last batches were dropped is found.
    """

    outcome: Literal["finished", "failed", "interrupted", "unsaved"]
    exit_code: int
    message: str | None = None
    heads: dict[str, Digest] = msgspec.field(default_factory=dict)


COMPLETE = frozenset(("finished", "unsaved"))
"""Outcomes of attempts whose ranks did all steps."""

AnyEvent = (
    AttemptStarted
    | RankStarted
    | Step
    | State
    | CheckpointPublished
    | OutputsStored
    | Notice
    | Setting
    | Imported
    | RankEnded
    | AttemptEnded
)


class Batch(Record, tag="ledger/1", frozen=True, kw_only=True):
    """Consecutive events of one rank, raw. `previous` and `head` are the hash chain before and after them."""

    run: str
    attempt: int
    rank: str
    seq: int
    previous: Digest
    head: Digest
    events: tuple[msgspec.Raw, ...]
