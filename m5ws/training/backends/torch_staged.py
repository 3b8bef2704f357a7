"""The staged state of an FSDP2, DDP or plain model: tensors by name, copied or live, and state that is no tensor.

A replica whose copies differ between ranks is stored once a rank. Every rank stores its own part of a sharded tensor.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from m5ws.errors import M5Error
from m5ws.repository.objects import Objects
from m5ws.training.backends import optimizer_state
from m5ws.training.backends.base import Box, Piece, Plain, Saved, Span, Stager
from m5ws.training.compat import sharded
from m5ws.training.runtime import collectives
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import StateError

_WHOLE = Span()
_BIT_FIELDS = re.compile(r"torch\.(u?int[1-7]|bits\w+)")


class CopiesDiffer(M5Error):
    """Ranks that should hold the same part of a tensor hold different bits."""

    hint = (
        "With tensor parallelism, gradients of parameters that are not sharded must be reduced over its ranks. "
        "If all are, one rank computed another update, as a faulty device does: resume from an older checkpoint."
    )


@dataclass(frozen=True)
class StagedState:
    """`base.Staged`: tensors by name, copied or live, and the state that is no tensor."""

    state: Mapping[str, torch.Tensor]
    common: dict[str, Plain]
    layouts: dict[str, dict[str, Plain]]
    extras: optimizer_state.Extras
    without: list[str]

    def tensors(self) -> Iterator[Piece]:
        return pieces(self.state)

    def save(
        self, objects: Objects, group: "torch.distributed.ProcessGroup | None", fingerprints: Mapping[str, str]
    ) -> Saved:
        from m5ws.training.backends import dcp

        apart = {name.rpartition("@")[0] for name in fingerprints if name not in self.state and "@" in name}
        if torn := sorted(name for name in apart if isinstance(self.state.get(name), DTensor)):
            raise CopiesDiffer(f"ranks hold copies of {', '.join(torn[:5])} that differ: no checkpoint could be exact")
        common, rank = self.plain(objects, group)
        tensors = dcp.save(self.named(apart, collectives.rank(group)), objects, group)
        return Saved(tensors=tensors, common=common, rank=rank)

    def named(self, apart: Collection[str], rank: int) -> dict[str, torch.Tensor]:
        """Return the tensors by the names they are stored under: replicas that differ have one for each rank."""
        return {f"{name}@{rank}" if name in apart else name: tensor for name, tensor in self.state.items()}

    def plain(
        self, objects: Objects, group: "torch.distributed.ProcessGroup | None"
    ) -> tuple[dict[str, Plain], dict[str, Plain]]:
        """Return the non-tensor state of all ranks, whole on rank 0, and of this rank; collective."""
        alike, own = optimizer_state.split_extras(self.extras, objects, group)
        common = {**self.common, **_on_all(self.layouts, objects, group), "optimizer": alike}
        # Stages of a pipeline may have groups of their own.
        groups = (
            {"groups": self.common["groups"]}
            if not collectives.equal_on_all(self.common["groups"], objects, group)
            else {}
        )
        return common, {"optimizer": own, "without": self.without, **groups}


def differing_replicas(
    state: Mapping[str, torch.Tensor], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> set[str]:
    """Return the names of replicas that have another shape or type on another rank; collective."""
    kinds: dict[str, Plain] = {
        name: f"{tensor.dtype} {tuple(tensor.shape)}"
        for name, tensor in state.items()
        if not isinstance(tensor, DTensor)
    }
    if collectives.equal_on_all(kinds, objects, group):
        return set()
    ranks = collectives.gather(kinds, group)
    return {name for name in kinds if any(rank.get(name, kinds[name]) != kinds[name] for rank in ranks)}


def _on_all(
    layouts: dict[str, dict[str, Plain]], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> dict[str, dict[str, Plain]]:
    """Return the layouts of leaves on any rank; collective."""
    if collectives.equal_on_all(layouts, objects, group):
        return layouts
    together: dict[str, dict[str, Plain]] = {kind: {} for kind in layouts}
    for rank in collectives.gather(layouts, group):
        for kind, leaves in rank.items():
            together[kind] |= leaves
    return together


def pieces(state: Mapping[str, torch.Tensor]) -> Iterator[Piece]:
    """Yield this rank's pieces of tensors by name. Raises StateError."""
    # Thousands of tensors have few layouts, and torch takes long to find a rank's part of one.
    boxes: dict[tuple[object, ...], tuple[Box | None, int]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor):
            yield Piece(name, tensor, _WHOLE, "replica")
            continue
        layout = (tensor.shape, tensor.device_mesh, tensor.placements)
        if layout not in boxes:
            box = _box(name, tensor)
            boxes[layout] = box, math.prod(box.sizes) if box is not None else 0
        box, count = boxes[layout]
        if box is None:
            continue
        local = sharded.local_part(tensor)
        if local.numel() != count:
            raise StateError(
                f"a shard of {name} has {local.numel()} elements, where torch would have {count} ({tensor.placements})",
                hint="Shards that `DTensor.from_local` made must have the sizes that torch gives them.",
            )
        yield Piece(name, local, box)


def _box(name: str, tensor: DTensor) -> Box | None:
    """Return the place of this rank's part; None if the rank is not one of the tensor's. Raises StateError."""
    if tensor.device_mesh.get_coordinate() is None:
        return None
    if any(placement.is_partial() for placement in tensor.placements):
        raise StateError(f"{name} has sums that are not reduced yet ({tensor.placements})")
    sizes, offsets = sharded.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(tensor.shape), offsets, sizes)


def staged_copy(name: str, tensor: torch.Tensor, copier: Stager) -> torch.Tensor:
    """Return the copier's copy of a tensor. The copy of a sharded tensor has a copy of this rank's part."""
    if not isinstance(tensor, DTensor):
        return copier.copy(name, tensor)
    local = sharded.local_part(tensor)
    copy = copier.copy(name, local)
    return tensor if copy is local else sharded.sharded_like(tensor, copy)


def check_kinds(state: Mapping[str, torch.Tensor]) -> None:
    """Raise StateError, with the reason, if a tensor is not a grid of elements of a known size."""
    for name, tensor in state.items():
        if (reason := _obstacle(tensor)) is not None:
            raise StateError(
                f"{name} is {reason}, which m5ws cannot store",
                hint="Use optimizer state of plain tensors, or of a class with __tensor_flatten__ and its inverse; "
                "hold other such tensors outside the model's parameters and buffers, and their data in `state=`.",
            )


def _obstacle(tensor: torch.Tensor) -> str | None:
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_meta:
        return "on the meta device"
    if tensor.layout != torch.strided:
        return f"of the layout {str(tensor.layout).removeprefix('torch.')}"
    if _BIT_FIELDS.fullmatch(str(tensor.dtype)):
        return f"of {str(tensor.dtype).removeprefix('torch.')}"
    local = sharded.local_part(tensor) if isinstance(tensor, DTensor) else tensor
    if type(local) not in subclasses.PLAIN and not subclasses.has_bytes(local):
        return f"a {type(local).__module__}.{type(local).__qualname__} without bytes of its own"
    return None
