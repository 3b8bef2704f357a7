"""Records of a ledger: the events of a run, in order, and the batches in which they are published."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from m5ws.records.base import CheckpointName, Count, Digest, OutputsName, Record
from m5ws.records.failure import EndReason, Failure
from m5ws.records.reads import ReadPath
from m5ws.records.stacks import NodeEvidence, RankStack

NODE = "node"
"""Origin of a node's own events, in the place of a rank's number."""
Origin = Annotated[str, msgspec.Meta(pattern=rf"\A(0|[1-9][0-9]{{0,8}}|{NODE})\Z")]


class Event(Record, frozen=True, kw_only=True):
    """Base of ledger events. `time_s` is seconds since the epoch, and is never compared."""

    time_s: float = 0.0


class AttemptStarted(Event, tag="attempt-started", frozen=True, kw_only=True):
    """First event of an attempt, by its leader on `host`. It fences all earlier attempts.

    `inherits` names every earlier checkpoint that counts; checkpoints that earlier attempts publish later do not.
    `nodes` is the number of machines, and `job` the job of a scheduler that started them. `job_name` is the name of the
    `Job` in the store, if `m5ws run --on` submitted it.
    """

    attempt: Count
    host: str
    nodes: Count = 1
    job: str | None = None
    job_name: str | None = None
    inherits: tuple[CheckpointName, ...] = ()
    resume: CheckpointName | None = None


class NodeStarted(Event, tag="node-started", frozen=True, kw_only=True):
    """A node of an attempt has started on `host`, in an `observed` environment. A killed attempt may lack it."""

    node: Count
    host: str
    observed: Digest


class RankStarted(Event, tag="rank-started", frozen=True, kw_only=True):
    """A rank has started. `facts` are effective values inside it (threads, capability, loaded libraries)."""

    rank: int
    world: int
    pid: int
    facts: dict[str, str | None] = msgspec.field(default_factory=dict)


class Step(Event, tag="step", frozen=True, kw_only=True):
    """One optimizer step, numbered from 1. `quantities` are exact texts (`records.exact`), `batch` digests the inputs.

    `tokens` and `seconds` are for people, and are never compared. `total` is the planned number of steps, if known.
    In an observed script, `digests` are of other values, by name: the outputs of its modules, the optimizers' settings.
    `updates` has the number of updates of each optimizer that counts them, by its label. `passes` is the number of
    forward passes with gradients and of backward passes, and is never compared.
    `samples` are the consumed samples by source, on rank 0 for all ranks: positions in the order of `DataOrder`, such
    as "0:1024-1040" (epoch, first, after the last). "batch" has the ids that a rank's own batches carry.
    """

    step: int
    quantities: dict[str, str]
    batch: Digest | None = None
    digests: dict[str, Digest] = msgspec.field(default_factory=dict)
    updates: dict[str, int] = msgspec.field(default_factory=dict)
    samples: dict[str, str] = {}
    passes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    total: int | None = None


class DataOrder(Event, tag="data-order", frozen=True, kw_only=True):
    """The order of the samples of an attempt, on rank 0: all that `m5ws.data.order` needs to locate a position.

    `description` is the loader's; its sources name their index by digest. `indexes` are the encoded indexes.
    """

    description: dict[str, Any]
    indexes: dict[Digest, bytes] = {}


class OtherLoader(Event, tag="other-loader", frozen=True, kw_only=True):
    """A rank reads `datasets` by a loader of `m5ws.data` whose samples no step records: it is not the session's."""

    datasets: tuple[str, ...]


class State(Event, tag="state", frozen=True, kw_only=True):
    """Fingerprints after `step` (0: before the first).

    `tensors` by name, summed over ranks, on rank 0 only; `generators` has a digest of each RNG of this rank.
    `restored` marks a state that was restored from a checkpoint.
    """

    step: int
    tensors: dict[str, str] = msgspec.field(default_factory=dict)
    generators: dict[str, str] = msgspec.field(default_factory=dict)
    restored: bool = False


class CheckpointPublished(Event, tag="checkpoint", frozen=True, kw_only=True):
    """A checkpoint is published under `name`; equal states have an equal `content`.

    The save took `seconds` from the copy of the state on. The training stood still for `stalled_s` of them, and before.
    """

    step: Count
    name: CheckpointName
    checkpoint: Digest
    content: Digest
    seconds: float = 0.0
    stalled_s: float = 0.0


class OutputsStored(Event, tag="outputs", frozen=True, kw_only=True):
    """The files that the script wrote by the end of the attempt are stored. `record` is an `OutputFiles`' digest.

    `files` is their number, `size_bytes` their size.
    """

    name: OutputsName
    record: Digest
    content: Digest
    files: Count = 0
    size_bytes: Count = 0


NoticeKind = Literal[
    "checkpoint-kept", "checkpoint-waited", "data-position", "environment", "fork", "inexact-resume", "input-modified",
    "launch-failed", "left-process", "limit", "loss", "missing-file", "network", "not-pinned", "not-traced",
    "other-environment", "outputs-conflict", "outputs-not-kept", "outputs-not-stored", "outputs-restored", "refused",
    "restart", "resume", "resume-limit", "resume-unchecked", "save-failed", "slow-rank", "unplaced"
]  # fmt: skip
"""`environment`: it differs from the declared environment. `other-environment`: a later attempt's differs from the
first attempt's. `limit`: a part of the run is not recorded. `not-pinned`: the run read files that no snapshot contains.
`inexact-resume`: a resume repeated a step with other values. `resume-limit`: state that a resume does not restore.
`resume-unchecked`: a resumed script repeated no step. `unplaced`: an observed attempt does not show after which step it
continues. `data-position`: a resume skipped or repeated samples. `checkpoint-waited`: the training stood still for it.
`network`: a variable of NCCL or libfabric has a known effect. `refused`: a file or host that is not pinned. `loss`: the
loss broke a rule of `[run] loss`. `restart`: the attempt began by itself after a failure. `slow-rank`: a rank is slower
than the other ranks of its node.
"""
Notify = Callable[[NoticeKind, str], None]
"""Called with the kind and the message of a notice, which it appends to the node's own events."""


class Notice(Event, tag="notice", frozen=True, kw_only=True):
    """A notice for people: a failed save, an inexact resume, a modified input, a limit.

    Readers decide by `kind`, `step` and `rank`. The `message` is shown, and never read.
    """

    kind: NoticeKind
    message: str
    step: int | None = None
    rank: int | None = None


class Setting(Event, tag="setting", frozen=True, kw_only=True):
    """A setting that can change bits, and that the script or a library changed before this step."""

    rank: int
    step: int
    name: str
    value: str


class Observation(Event, tag="observation", frozen=True, kw_only=True):
    """The script uses no session, and its steps are observed. `parts` describes new modules and optimizers.

    The first event of an attempt has the step `after` which the attempt continues. `unplaced`: no record proves that
    step, so the attempt counts its steps from 1. `failed_after`: an error ended the observation after this step.
    """

    rank: int
    after: Count | None = None
    unplaced: bool = False
    failed_after: Count | None = None
    parts: dict[str, str] = msgspec.field(default_factory=dict)


class ScriptEnded(Event, tag="script-ended", frozen=True, kw_only=True):
    """The script has ended by itself, with a session or without.

    `weights` has fingerprints of this rank's parameters and buffers that are still alive, by name. `unread` describes
    optimizers that stepped parameters of which nothing is recorded.
    """

    rank: int
    weights: dict[str, str] = msgspec.field(default_factory=dict)
    unread: tuple[str, ...] = ()


class Imported(Event, tag="imported", frozen=True, kw_only=True):
    """Modules and libraries that a rank and its forked workers loaded since its last event of this kind.

    `modules` are places of installed modules and libraries, as in `Observed.provides`. `libraries` are the paths of
    loaded native libraries, as in `RankStarted.facts` (`loaded.NAME`).
    """

    rank: int
    modules: tuple[str, ...] = ()
    libraries: dict[str, str | None] = msgspec.field(default_factory=dict)


class NcclLogged(Event, tag="nccl-logged", frozen=True, kw_only=True):
    """Facts in a rank's log of NCCL so far (`nccl.NAME`). The last such event of the rank counts."""

    rank: int
    facts: dict[str, str] = msgspec.field(default_factory=dict)


class Reads(Event, tag="reads", frozen=True, kw_only=True):
    """Files, folders and hosts that the processes of a node used outside known places, since its last event of this
    kind. `more`: a process used more than it noted.
    """

    paths: tuple[ReadPath, ...] = ()
    hosts: tuple[str, ...] = ()
    more: bool = False


class Moved(Event, tag="moved", frozen=True, kw_only=True):
    """Bytes that the processes of a node read from a bucket and wrote to it since its last event of this kind.

    They are the contents of requests, without headers. `region` is the bucket's and `here` the node's, None if unknown.
    """

    region: str | None = None
    here: str | None = None
    read_bytes: Count = 0
    written_bytes: Count = 0

    @property
    def crosses(self) -> bool | None:
        """True if the regions differ, None if a region is unknown."""
        return self.region != self.here if self.region and self.here else None


class Phase(Event, tag="phase", frozen=True, kw_only=True):
    """A session's rank is in the phase `name` from now on, after `step`: a fact for supervision, never compared.

    "step": the loop. "load": the restore of a checkpoint. "save": the loop stands still for a checkpoint. "end": the
    rest of the script. Other names are the script's own, such as "evaluation".
    """

    rank: int
    step: Count
    name: str


class Stacks(Event, tag="stacks", frozen=True, kw_only=True):
    """Evidence for an attempt that ended as stuck: its ranks and nodes, in the leader's own events."""

    ranks: tuple[RankStack, ...]
    nodes: tuple[NodeEvidence, ...] = ()


class RankEnded(Event, tag="rank-ended", frozen=True, kw_only=True):
    """A rank has ended. `failure` is None if its script succeeded."""

    rank: int
    failure: Failure | None = None


class AttemptEnded(Event, tag="attempt-ended", frozen=True, kw_only=True):
    """Last event of an attempt, by its leader.

    `outcome` "unsaved": the ranks did all steps, but the last checkpoint or the output files could not be stored. If
    they are stored later, a second event of this kind follows, "finished". `heads` has the head of each rank after its
    last event, so that dropped events are detected. Unless it `is_whole`, a node was lost, whose heads are unknown,
    or delivers events or results later. `logged` is False if no process of the attempt began a run in MLflow.
    """

    outcome: Literal["finished", "failed", "interrupted", "unsaved"]
    exit_code: int
    reason: EndReason | None = None
    heads: dict[str, Digest] = msgspec.field(default_factory=dict)
    is_whole: bool = True
    logged: bool = True


COMPLETE = frozenset(("finished", "unsaved"))
"""Outcomes of attempts whose ranks finished all steps."""

AnyEvent = (
    AttemptStarted
    | NodeStarted
    | RankStarted
    | Step
    | DataOrder
    | OtherLoader
    | State
    | CheckpointPublished
    | OutputsStored
    | Notice
    | Setting
    | Observation
    | ScriptEnded
    | Imported
    | NcclLogged
    | Reads
    | Moved
    | Phase
    | Stacks
    | RankEnded
    | AttemptEnded
)


class _ChainedBatch(Record, frozen=True, kw_only=True):
    run: str
    attempt: int
    node: int
    seq: int
    previous: Digest
    head: Digest


class Batch(_ChainedBatch, tag="ledger/1", frozen=True, kw_only=True):
    """Consecutive events of one node. `previous` and `head` are the hash chain before and after them.

    `events` is a map, as stored, from each origin to its events in order: by origins, so the node's own come last.
    """

    events: msgspec.Raw


COMPRESSED_BYTES = 64 * 2**20
"""Upper bound of the size of a compressed batch's events: the size of one PUT to the store."""


class CompressedBatch(_ChainedBatch, tag="ledger/2", frozen=True, kw_only=True):
    """As `Batch`, with its map of events as a zlib stream of `size_bytes`.

    `digest` is the BLAKE3-256 of the stream, since a stream has bits that do not change the events.
    """

    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=COMPRESSED_BYTES)]
    digest: Digest
    events: bytes


AnyBatch = Batch | CompressedBatch
