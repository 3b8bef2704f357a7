"""The layout of optimizer state: each tensor has its parameter's layout or another, so that a restore can rebuild it.

Invariant: `like` gives the layout that a stored leaf had when it was saved, if the parameter has its old layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, zeros

from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.training.backends.base import Plain
from m5ws.training.compat import tensors
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import RestoreError, StateError


def placements_text(leaf: str, tensor: DTensor) -> list[str]:
    """Return the placements of a leaf that is cut otherwise than its parameter. Raises StateError."""
    for placement in tensor.placements:
        if type(placement) not in (Shard, Replicate):
            raise StateError(
                f"{leaf} is cut as {placement} and its parameter otherwise: a restore could not rebuild it"
            )
    return [str(placement.dim) if isinstance(placement, Shard) else "whole" for placement in tensor.placements]


@dataclass(frozen=True)
class Like:
    """How a tensor lies. With `of`, it has that parameter's memory format too."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()
    of: torch.Tensor | None = field(default=None, compare=False)

    def zeros(self) -> torch.Tensor:
        if self.of is not None:
            return torch.zeros_like(self.of, dtype=self.dtype, requires_grad=False)
        if self.mesh is not None:
            return zeros(self.shape, dtype=self.dtype, device_mesh=self.mesh, placements=self.placements)
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def __str__(self) -> str:
        cut = f" cut as {self.placements} over {self.mesh}" if self.mesh is not None else ""
        return f"{self.dtype} {self.shape} on {self.device}{cut}"


def _of(tensor: torch.Tensor, dtype: torch.dtype, of: torch.Tensor | None = None) -> Like:
    mesh, cut = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (None, ())
    return Like(tuple(tensor.shape), dtype, str(tensor.device), mesh, tuple(cut), of)


def like(leaf: str, parameter: torch.Tensor, record: TensorRecord, common: Mapping[str, Plain], alike: bool) -> Like:
    """Return how a leaf of a parameter's state is to lie, which has the parameter's layout if it is `alike`."""
    dtype = content_rules.dtype(record.name, record.dtype)
    device = common["devices"].get(leaf)
    placements = common.get("placements", {}).get(leaf)
    if isinstance(parameter, DTensor) and placements and len(placements) == parameter.device_mesh.ndim:
        cut = tuple(Replicate() if text == "whole" else Shard(int(text)) for text in placements)
        mesh = parameter.device_mesh
        on_mesh = parameter.device.type == mesh.device_type
        return Like(record.shape, dtype, str(parameter.device) if on_mesh else mesh.device_type, mesh, cut)
    if device is None and tuple(parameter.shape) == record.shape:
        return _of(parameter, dtype, parameter)
    if device is None and isinstance(parameter, DTensor):
        raise RestoreError(f"{leaf} is a shard of another shape than its parameter, which cannot be made")
    if alike and parameter.ndim and leaf not in common.get("whole", {}) and device == parameter.device.type:
        return _of(parameter, dtype, parameter)
    return Like(record.shape, dtype, "cpu" if device == "cpu" else str(parameter.device))


def as_it_is(state: Mapping[str, torch.Tensor], leaf: str, wanted: Like) -> torch.Tensor:
    """Return the live tensor of a leaf. Raises StateError if a rebuilt one would have another layout."""
    tensor = state[leaf]
    if wanted != (now := _of(tensor, tensor.dtype)):
        raise StateError(f"{leaf} is {now}, and would come back as {wanted}")
    return tensor


def as_shard(name: str, parameter: torch.Tensor, local: torch.Tensor, whole: tuple[int, ...] | None) -> torch.Tensor:
    """Return a tensor that is made of tensors as its parameter lies. Raises RestoreError if it was cut otherwise."""
    fits = not isinstance(parameter, DTensor)
    if isinstance(parameter, DTensor) and whole == tuple(parameter.shape):
        fits = tuple(local.shape) == tuple(subclasses.local_of(parameter).shape)
    if not fits or (whole is not None and not isinstance(parameter, DTensor)):
        raise RestoreError(
            f"the optimizer's state of {name} was made of tensors on other ranks, or cut otherwise: it only comes back "
            "on the layout that it had",
            hint="Quantized state has scales for blocks of a rank's own part, which cannot be cut in another way.",
        )
    if not isinstance(parameter, DTensor):
        return local
    return tensors.sharded_like(parameter, local)
