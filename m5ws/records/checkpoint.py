"""Records of a checkpoint: shards, tensors, content."""

from typing import Literal

from m5ws.records.base import Count, Digest, Record
from m5ws.records.tree import Slice


class Shard(Record, frozen=True, kw_only=True):
    """A region of a tensor: `offsets` and `sizes` per dimension. `parts` joined are its row-major bytes."""

    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    parts: tuple[Slice, ...]


class Tensor(Record, frozen=True, kw_only=True):
    """A whole tensor, whatever the number of ranks: its shards are disjoint regions that fill it."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    shards: tuple[Shard, ...]


class Content(Record, tag="content/1", frozen=True, kw_only=True):
    """The state in a checkpoint, without its origin and time: equal states have equal content digests.

    `format` is dcp (tensors by name), deepspeed (tensors by file and path) or files (only `tree`).
    `ranks` has each rank's non-tensor state (RNG, loader, scheduler …) as plain msgpack, `common` the
    state that is equal on all ranks. `blobs` are opaque byte items by name.
    """

    format: Literal["dcp/1", "deepspeed/1", "files/1"]
    world: Count
    tensors: tuple[Tensor, ...] = ()
    blobs: dict[str, Slice] = {}
    common: Slice | None = None
    ranks: tuple[Slice, ...] = ()
    tree: Digest | None = None


class Checkpoint(Record, tag="checkpoint/1", frozen=True, kw_only=True):
    """A content, linked to its run, snapshot and attempt. `ledger` maps each rank to its chain's head at the step."""

    run: str
    snapshot: Digest
    attempt: Count
    step: Count
    content: Digest
    ledger: dict[str, Digest] = {}
