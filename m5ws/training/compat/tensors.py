"""Internals of torch's tensors: DTensor's specification, nested values, wrapper classes, leaves of autograd graphs."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement
from torch.utils import _python_dispatch, _pytree

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


def tree_leaves(values: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples, dictionaries and registered classes, in order."""
    return _pytree.tree_leaves(values)


def is_wrapper(tensor: object) -> bool:
    """Return True for a tensor of a class that wraps inner tensors."""
    return bool(_python_dispatch.is_traceable_wrapper_subclass(tensor))


def is_accumulator(node: Any) -> TypeGuard[Any]:
    """Return True for the node of the autograd graph that adds to a leaf's gradient; its `variable` is the leaf."""
    return node is not None and hasattr(node, "variable")


def leaf_of(node: Any) -> torch.Tensor:
    """Return the leaf of an accumulator node."""
    leaf: torch.Tensor = node.variable
    return leaf


def _has_accumulator() -> bool:
    leaf = torch.empty(0, requires_grad=True)
    node = (leaf.view(0).grad_fn.next_functions)[0][0]  # type: ignore[union-attr]
    return is_accumulator(node) and leaf_of(node) is leaf


TRACED = (
    Fact("torch", "torch.utils._pytree.tree_leaves", lambda: tree_leaves((1, {"a": [2]})) == [1, 2]),
    Fact("torch", "torch.utils._python_dispatch.is_traceable_wrapper_subclass", lambda: not is_wrapper(torch.empty(0))),
    Fact("torch", "AccumulateGrad.variable in the autograd graph", _has_accumulator),
)


def sharded(model: torch.nn.Module) -> Iterator[Fact]:
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
    return sizes == tuple(tensor.to_local().shape) and len(offsets) == tensor.ndim
