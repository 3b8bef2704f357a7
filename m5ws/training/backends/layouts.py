"""The layout of optimizer state, recorded so that a restore can rebuild each tensor.

A tensor has the layout of its parameter or another layout. Invariant: if the parameter has its old layout, `like`
returns the layout that a stored leaf had when it was saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, empty

from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.training.backends.base import Plain
from m5ws.training.compat import sharded
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import RestoreError, StateError


def placements_text(leaf: str, tensor: DTensor) -> list[str]:
    """Return the placements of a leaf that is sharded differently from its parameter. Raises StateError."""
    for placement in tensor.placements:
        if type(placement) not in (Shard, Replicate):
            raise StateError(f"{leaf} is sharded as {placement}, unlike its parameter: a restore could not rebuild it")
    return [str(placement.dim) if isinstance(placement, Shard) else "whole" for placement in tensor.placements]


@dataclass(frozen=True)
class LayoutLike:
    """The layout of a tensor. With `of`, it has that parameter's memory format too."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()
    of: torch.Tensor | None = field(default=None, compare=False)

    def empty(self) -> torch.Tensor:
        if self.of is not None:
            return torch.empty_like(self.of, dtype=self.dtype, requires_grad=False)
        if self.mesh is not None:
            return empty(self.shape, dtype=self.dtype, device_mesh=self.mesh, placements=self.placements)
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        cut = f" sharded as {self.placements} over {self.mesh}" if self.mesh is not None else ""
        return f"{self.dtype} {self.shape} on {self.device}{cut}"


def _of(tensor: torch.Tensor, dtype: torch.dtype, of: torch.Tensor | None = None) -> LayoutLike:
    mesh, cut = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (None, ())
    return LayoutLike(tuple(tensor.shape), dtype, str(tensor.device), mesh, tuple(cut), of)


def like(
    leaf: str, parameter: torch.Tensor, record: TensorRecord, common: Mapping[str, Plain], alike: bool
) -> LayoutLike:
    """Return the layout that a restored leaf gets; it is the parameter's own if the leaf is `alike`."""
    dtype = content_rules.dtype(record.name, record.dtype)
    device = common["devices"].get(leaf)
    placements = common["placements"].get(leaf)
    if isinstance(parameter, DTensor) and placements and len(placements) == parameter.device_mesh.ndim:
        cut = tuple(Replicate() if text == "whole" else Shard(int(text)) for text in placements)
        mesh = parameter.device_mesh
        on_mesh = parameter.device.type == mesh.device_type
        return LayoutLike(record.shape, dtype, str(parameter.device) if on_mesh else mesh.device_type, mesh, cut)
    if device is None and tuple(parameter.shape) == record.shape:
        return _of(parameter, dtype, parameter)
    if device is None and isinstance(parameter, DTensor):
        raise RestoreError(f"{leaf} is a shard of another shape than its parameter, which m5ws cannot rebuild")
    if alike and parameter.ndim and leaf not in common["whole"] and device == OF_PARAMETER:
        return _of(parameter, dtype, parameter)
    return LayoutLike(record.shape, dtype, "cpu" if device == "cpu" else str(parameter.device))


OF_PARAMETER = "parameter"


def device(leaf: torch.Tensor, parameter: torch.Tensor) -> str:
    """Return the device of a leaf as a checkpoint has it: the parameter's, on whatever device that is later, or "cpu".

    Numbers on a CPU stay there, as in torch's `Optimizer.load_state_dict`: Adam's step.
    """
    is_on_cpu = leaf.device.type == "cpu" and (leaf.ndim == 0 or parameter.device.type != "cpu")
    return "cpu" if is_on_cpu else OF_PARAMETER


def as_it_is(state: Mapping[str, torch.Tensor], leaf: str, wanted: LayoutLike) -> torch.Tensor:
    """Return the live tensor of a leaf. Raises StateError if a rebuilt tensor would have another layout."""
    tensor = state[leaf]
    if wanted != (now := _of(tensor, tensor.dtype)):
        raise StateError(f"{leaf} is {now}, and would be restored as {wanted}")
    return tensor


def as_shard(name: str, parameter: torch.Tensor, local: torch.Tensor, whole: tuple[int, ...] | None) -> torch.Tensor:
    """Return a wrapper tensor with the layout of its parameter. Raises RestoreError if it was sharded differently."""
    fits = not isinstance(parameter, DTensor)
    if isinstance(parameter, DTensor) and whole == tuple(parameter.shape):
        fits = tuple(local.shape) == tuple(subclasses.local_of(parameter).shape)
    if not fits or (whole is not None and not isinstance(parameter, DTensor)):
        raise RestoreError(
            f"the optimizer state of {name} consists of inner tensors with another sharding: it can only be restored "
            "on the layout that it was saved with",
            hint="Quantized state has scales for blocks of each rank's part, which cannot be sharded differently.",
        )
    if not isinstance(parameter, DTensor):
        return local
    return sharded.sharded_like(parameter, local)
