"""Records of a checkpoint: a small root, the table of its tensors, and parts with the shares of ranks.

Only a part grows with the number of tensors on a rank, and only the list of parts grows with the number of ranks.
"""

from typing import Annotated, Literal

import msgspec

from m5ws.records.base import Count, Digest, ObjectBytes, Record
from m5ws.records.tree import Slice

Offsets = tuple[Count, ...]
DIGEST_BYTES = 32
_Pieces = Annotated[int, msgspec.Meta(ge=2, le=2**31)]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A region of a tensor: `offsets` and `sizes` per dimension. `parts` joined are its row-major bytes."""

    offsets: Offsets
    sizes: Offsets
    parts: tuple[Slice, ...]


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor with the locations of its bytes, as `repository.contents` returns it; whole, if all ranks are read."""

    name: str
    dtype: str
    shape: Offsets
    shards: tuple[Shard, ...]


class Axis(Record, array_like=True, frozen=True):
    """A cut of one dimension into `pieces`; neighbours are `distance` ranks apart. Torch's rule gives the sizes."""

    dimension: Annotated[int, msgspec.Meta(ge=0, le=64)]
    pieces: _Pieces
    distance: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class Kind(Record, array_like=True, frozen=True):
    """Type, shape and cuts that many tensors have in common, cut one after another.

    Without cuts, one rank has stored the tensor whole. None: the shares contain a box for each shard.
    """

    dtype: str
    shape: Offsets
    axes: tuple[Axis, ...] | None = ()


class Row(Record, array_like=True, frozen=True):
    """A tensor: the characters that its name shares with the name before, the rest, its kind, and its first rank."""

    shared: Count
    rest: str
    kind: Count
    first: Count = 0


class Table(Record, tag="tensors/1", frozen=True, kw_only=True):
    """The tensors of a checkpoint in order of names, without the locations of their bytes."""

    kinds: tuple[Kind, ...]
    rows: tuple[Row, ...]


class Box(Record, array_like=True, frozen=True):
    """A region of a tensor."""

    offsets: Offsets
    sizes: Offsets


class OwnTensor(Record, array_like=True, frozen=True):
    """A tensor that one rank has under a name of its own, whole."""

    name: str
    dtype: str
    shape: Offsets


class Locations(Record, array_like=True, frozen=True):
    """Slices in columns: 32 bytes a slice instead of 200.

    `objects` are the digests of the objects, joined. `starts` has 0 for an object that is one slice, else one more than
    the offset of its first slice. Each slice has the place of its object, less the place of the slice before (`steps`),
    and its size. It begins where the slice before it in the same object ends. `digests` has the digests of slices that
    are not an object.
    """

    objects: bytes = b""
    starts: tuple[Count, ...] = ()
    steps: tuple[int, ...] = ()
    sizes: tuple[ObjectBytes, ...] = ()
    digests: bytes = b""


class Share(Record, frozen=True, kw_only=True):
    """The part of a checkpoint that one rank has stored.

    `state` is its non-tensor state (RNG, loader, scheduler …) as plain msgpack, `blobs` opaque byte items by name.
    `rows` are the places of its shards in the table, each less the place before; a place may occur again. `boxes` are
    the regions of the rows whose kind has none. `own` tensors follow the rows. `counts` are the numbers of slices of
    rows and own tensors, empty if each has one. `locations` has these slices.
    """

    state: Slice | None = None
    blobs: dict[str, Slice] = {}
    rows: tuple[Count, ...] = ()
    boxes: tuple[Box, ...] = ()
    own: tuple[OwnTensor, ...] = ()
    counts: tuple[Count, ...] = ()
    locations: Locations = Locations()


class Part(Record, tag="part/1", frozen=True, kw_only=True):
    """The shares of consecutive ranks, from rank `first` on."""

    first: Count
    shares: tuple[Share, ...]


class PartOf(Record, array_like=True, frozen=True):
    """A part in the list of a content: its first rank, and its digest."""

    first: Count
    part: Digest


class Content(Record, tag="content/2", frozen=True, kw_only=True):
    """The state in a checkpoint, without its origin and time: equal states have equal content digests.

    `format` is dcp (tensors by name), deepspeed (tensors by file and path) or files (only `tree`). `common` is the
    state that is equal on all ranks, `fingerprints` are the tensors' fingerprints by name; both are plain msgpack.
    `apart` are the names of tensors that some ranks have as "NAME@RANK".
    """

    format: Literal["dcp/1", "deepspeed/1", "files/1"]
    world: Count
    tensors: Digest | None = None
    parts: tuple[PartOf, ...] = ()
    common: Slice | None = None
    fingerprints: Slice | None = None
    apart: tuple[str, ...] = ()
    tree: Digest | None = None


class Checkpoint(Record, tag="checkpoint/1", frozen=True, kw_only=True):
    """A content, linked to its run, snapshot and attempt. `ledger` maps each rank to its chain's head at the step."""

    run: str
    snapshot: Digest
    attempt: Count
    step: Count
    content: Digest
    ledger: dict[str, Digest] = {}
