"""Kinds of tensors that a checkpoint can store: grids of elements of a known size, in memory."""

import re
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from m5ws.training.compat import sharded
from m5ws.training.state import subclasses
from m5ws.training.state.plain_state import StateError

_BIT_FIELDS = re.compile(r"torch\.(u?int[1-7]|bits\w+)")


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
