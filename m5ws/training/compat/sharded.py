"""Internals of DTensor: its specification, its local part, and the place of that part.

torch.distributed.tensor takes half as long to import as all of torch. Scripts that shard no tensor do not need it, so
only backends import this module.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from m5ws.training.compat.facts import Fact


def sharded_like(tensor: DTensor, local: torch.Tensor) -> DTensor:
    """Return a DTensor with the mesh and placements of `tensor` and another local part, on any device.

    `DTensor.from_local` would move the part to the device of the mesh, and communicate with other ranks.
    """
    return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def local_part(tensor: DTensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor.

    `to_local` does the same without gradients; with them, it adds an operation to autograd's graph, and takes longer.
    """
    return tensor._local_tensor


def local_box(
    shape: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of this rank's part of a sharded tensor, and its offsets in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(sizes), tuple(offsets)


def facts_of(model: torch.nn.Module) -> Iterator[Fact]:
    """Yield the facts about sharded tensors, tried on a model's first one; none if this rank has none."""
    for tensor in model.parameters():
        if isinstance(tensor, DTensor) and tensor.device_mesh.get_coordinate() is not None:
            yield Fact("torch", "DTensor._local_tensor", partial(_has_part, tensor))
            yield Fact("torch", "DTensor(local_tensor, spec, requires_grad=…)", partial(_is_rebuilt, tensor))
            name = "torch.distributed.tensor._utils.compute_local_shape_and_global_offset"
            yield Fact("torch", name, partial(_has_box, tensor))
            return


@torch.no_grad()
def _has_part(tensor: DTensor) -> bool:
    return local_part(tensor).data_ptr() == tensor.to_local().data_ptr()


@torch.no_grad()
def _is_rebuilt(tensor: DTensor) -> bool:
    local = tensor.to_local()
    rebuilt = sharded_like(tensor, local)
    return (rebuilt.placements, rebuilt.shape) == (tensor.placements, tensor.shape) and rebuilt.to_local() is local


@torch.no_grad()
def _has_box(tensor: DTensor) -> bool:
    sizes, offsets = local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    # A part that `DTensor.from_local` made may have other sizes.
    return len(sizes) == len(offsets) == tensor.ndim
