"""Interface of a training framework: its tensors, a save and an exact load.

Invariant: names are the same on every layout. `tensors()` yields views of live state and copies nothing. Together the
ranks yield every element of every named tensor, and each copy of it.

`session(engine=…)` creates a `deepspeed.backend.DeepSpeedBackend`, any other session an `torch_backend.TorchBackend`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch

from m5ws.records.checkpoint import Axis, Content, Share
from m5ws.repository.contents import Parts, TableTensor
from m5ws.repository.objects import Objects
from m5ws.training.runtime.collectives import Group
from m5ws.training.state import plain_state

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


COPIES = -1
"""The dimension of an axis along which ranks have copies."""


class Cut(NamedTuple):
    """The formula of a sharded tensor: its first rank, and axes of (dimension, pieces, distance of ranks)."""

    first: int
    axes: tuple[tuple[int, int, int], ...]

    @property
    def cuts(self) -> tuple[Axis, ...]:
        return tuple(Axis(*axis) for axis in self.axes if axis[0] != COPIES)

    @property
    def copies(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(axis for axis in self.axes if axis[0] == COPIES)

    def ranks(self) -> list[int]:
        """Return all ranks of the mesh."""
        ranks = [self.first]
        for _, pieces, distance in self.axes:
            ranks = [rank + place * distance for rank in ranks for place in range(pieces)]
        return ranks


class Layout(NamedTuple):
    """A training's parameters by name and buffers by name and shape, and the number of parameters in each group of its
    optimizers. All are of this rank.

    A checkpoint is restored into the layout that it was saved from.
    """

    tensors: frozenset[str]
    groups: tuple[int, ...]


class Piece(NamedTuple):
    """The part of one named tensor that this rank holds.

    Names are "model.<parameter fqn>", "buffer.<fqn>", "optimizer.<parameter fqn>.<key>", "master.<fqn>". `copy` is
    "replica" for a whole tensor of which several ranks hold a copy, and "only" for a part of a tensor. Of equal pieces
    on several ranks one counts, but all are compared. A name may have several pieces on a rank, all of the same kind of
    `copy`. `cut` is the formula of a part in a `Box`, None without one.
    """

    name: str
    tensor: torch.Tensor
    place: Span | Box = Span()
    copy: Literal["only", "replica"] = "only"
    cut: Cut | None = None


@dataclass(frozen=True)
class Saved:
    """The result of a backend's save on one rank, which becomes part of a `Content`.

    `whole` (whole tensors for all ranks), `table`, `apart` and `common` count on rank 0 alone; `share` and `rank` are
    this rank's own. `common` and `rank` are plain data without time, path, run or attempt, so equal states give equal
    bytes.
    """

    share: Share = field(default_factory=Share)
    whole: Share = field(default_factory=Share)
    table: Sequence[TableTensor] = ()
    apart: tuple[str, ...] = ()
    common: dict[str, Plain] = field(default_factory=dict)
    rank: dict[str, Plain] = field(default_factory=dict)


class Stager(Protocol):
    """Copies a backend's live tensors."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor with these bits that the training will not change; `name` is unique."""


class NoCopyStager:
    """Copies nothing: for a save that the training waits for."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class Staged(Protocol):
    """The state of a training at one moment; later steps do not change it."""

    def tensors(self) -> Iterator[Piece]:
        """Yield this rank's pieces, as `Backend.tensors` did at that moment."""

    def save(self, objects: Objects, group: Group, apart: Collection[str]) -> Saved:
        """Write this rank's part of the state; collective, in any thread. On return, its bytes are durable.

        `apart` are the names in `tensors()` of which ranks have replicas that differ. An
        error is raised on the failing rank alone, and the caller reports it to the other ranks. Therefore a save must
        not wait for a failed rank in any collective but on `group`: gloo times out, and keeps its errors.
        """


class Backend(Protocol):
    """The training state of one framework."""

    @property
    def format(self) -> Literal["dcp/1", "deepspeed/1"]:
        """The `Content.format` that this backend writes and reads."""

    def tensors(self) -> Iterator[Piece]:
        """Yield this rank's pieces of all state, in the same order at each call. Not collective."""

    def begin(self) -> Iterator[str]:
        """Prepare the training for its first step, and yield the limits of an exact restore; collective."""

    def takes(self, path: str, tensor: torch.Tensor) -> bool:
        """Return True if a tensor in an object of the session is one of `tensors()` under its path."""

    def given(self, path: str) -> torch.Tensor:
        """Return such a tensor as `load` has read it. A second call for the same path fails."""

    def check(self) -> None:
        """Raise StateError for state, as it is after a step, that `stage` would miss. Not collective."""

    def layout(self) -> Layout:
        """Return the present layout. Not collective."""

    def rehearse(self, objects: Objects, group: Group, apart: Collection[str] = ()) -> None:
        """Plan a save and a load of the present state without moving bytes of tensors; collective.

        `apart` is as in `Staged.save`. Changes nothing. Raises StateError for state that `load` would not restore to
        its present layout.
        """

    def stage(self, copier: Stager) -> Staged:
        """Copy the state out of the training; collective. Raises StateError."""

    def load(
        self,
        objects: Objects,
        content: Content,
        parts: Parts,
        common: Mapping[str, Plain],
        rank: Mapping[str, Plain] | None,
        group: Group,
    ) -> None:
        """Restore exactly the state of `content`, whose shares are in `parts`; collective.

        `common` and `rank` have the values that `save` returned in these fields; `rank` is None if the number of ranks
        changed. Raises M5Error if the content does not fit the model.
        """
