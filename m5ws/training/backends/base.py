"""What the session asks of a training framework: its tensors, a save and an exact load.

Invariant: names are the same on every layout. `tensors()` yields views of live state and copies nothing;
together the ranks yield every element of every named tensor, and each copy of it.
`session(engine=…)` makes a `training.deepspeed.DeepSpeedBackend(engine)`, otherwise a `training.fsdp.FsdpBackend`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from m5ws.records.checkpoint import Content
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects
from m5ws.training.state import plain_state
from m5ws.training.state.staging import Copier

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

Plain = plain_state.Plain


@dataclass(frozen=True)
class Span:
    """Local elements, in row-major order, are the global tensor's flat indices from `start` on."""

    start: int = 0


@dataclass(frozen=True)
class Box:
    """Local elements, in row-major order, fill the box at `offsets` with `sizes` of a tensor of `shape`."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """The part of one named tensor that this rank holds.

    Names are "model.<parameter fqn>", "buffer.<fqn>", "optimizer.<parameter fqn>.<key>", "master.<fqn>".
    `copy` tells a "replica", a whole tensor of which each rank that has it holds a copy, from "only" a part of one.
    Of equal pieces on several ranks one counts; all are looked at.
    One name may have several pieces on a rank, but one kind of `copy`: either it is a replica or it is not.
    """

    name: str
    tensor: "torch.Tensor"
    place: Span | Box = field(default_factory=Span)
    copy: Literal["only", "replica"] = "only"


@dataclass(frozen=True)
class Saved:
    """What a backend's save gives to a `Content`.

    `tensors`, `blobs` and `common` count on rank 0 alone; `rank` is this rank's own. The last two are plain data
    and hold no time, path, run or attempt: equal states give equal bytes.
    """

    tensors: tuple[TensorRecord, ...] = ()
    blobs: dict[str, Slice] = field(default_factory=dict)
    common: dict[str, Plain] = field(default_factory=dict)
    rank: dict[str, Plain] = field(default_factory=dict)


class Staged(Protocol):
    """A training's state at one moment, which later steps do not change."""

    def tensors(self) -> Iterator[Piece]:
        """Yield this rank's pieces, as `Backend.tensors` did at that moment."""

    def save(self, objects: Objects, group: "ProcessGroup | None", fingerprints: Mapping[str, str]) -> Saved:
        """Write all state; collective, in any thread. When it returns on a rank, that rank's bytes are durable.

        `fingerprints` are of `tensors()`: they tell which replicas differ from rank to rank. Raises on the rank that
        failed; the caller tells the others. So it must not wait for a rank that failed in any collective of its own
        other than on `group` (gloo times out, and its errors are not lost).
        """


class Backend(Protocol):
    """One framework's training state. `group` in all calls: a gloo group of all ranks, or None for one process."""

    @property
    def format(self) -> Literal["dcp/1", "deepspeed/1"]:
        """The `Content.format` this backend writes and reads."""

    def tensors(self) -> Iterator[Piece]:
        """Yield this rank's pieces of all state, in the same order on each call. Not collective."""

    def begin(self) -> Iterator[str]:
        """Make the training ready for its first step; yield what will not be exact all the same; collective."""

    def takes(self, path: str, tensor: "torch.Tensor") -> bool:
        """Return whether a tensor in an object of the session's is one of `tensors()`, named by its path."""

    def given(self, path: str) -> "torch.Tensor":
        """Return such a tensor as `load` has read it; once."""

    def check(self) -> None:
        """Raise StateError for state, as it is after a step, that `load` could not bring back. Not collective."""

    def rehearse(self, objects: Objects, group: "ProcessGroup | None") -> None:
        """Plan a save and a load of the state as it is, of which no tensor's bytes move; collective.

        Changes nothing. Raises StateError for what `load` would not bring back as it lies.
        """

    def stage(self, copier: Copier) -> Staged:
        """Copy the state out of the training; collective. Raises StateError."""

    def load(
        self,
        objects: Objects,
        content: Content,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: "ProcessGroup | None",
    ) -> None:
        """Bring back exactly the state of `content`; collective.

        `common` and `rank` are what `save` returned in these fields; `rank` is None when the number of ranks
        changed. Raises M5Error if the content does not fit the model.
        """
