"""Wrapper tensors, which consist of inner tensors and have no bytes of their own, such as quantized optimizer state.

torch's protocol for such classes takes them apart and rebuilds them. `__tensor_flatten__` returns the names of the
inner tensors and a context; `__tensor_unflatten__` is its inverse. A tensor that follows the protocol is stored by its
inner tensors.

https://docs.pytorch.org/docs/stable/notes/extending.html
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch

from m5ws.training.state import tensor_bytes

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are no wrapper tensors."""


@dataclass(frozen=True)
class TensorParts:
    """A tensor taken apart: `kind` is "module:class", `inner` the live tensors by attribute, `context` the rest.

    `shards` is the shape of the whole tensor of which this is a rank's part, or None.
    """

    kind: str
    inner: dict[str, torch.Tensor]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    shards: tuple[int, ...] | None


def parts(tensor: torch.Tensor) -> TensorParts | None:
    """Return the parts of a wrapper tensor; None for a tensor with bytes of its own."""
    if type(tensor) in PLAIN:
        return None
    local = local_of(tensor)
    kind = type(local)
    if kind in PLAIN or not hasattr(kind, "__tensor_unflatten__") or has_bytes(local):
        return None
    names, context = local.__tensor_flatten__()  # type: ignore[attr-defined]
    return TensorParts(
        kind=f"{kind.__module__}:{kind.__qualname__}",
        inner={name: getattr(local, name) for name in names},
        context=context,
        shape=tuple(local.shape),
        stride=tuple(local.stride()),
        shards=tuple(tensor.shape) if local is not tensor else None,
    )


def join(parts: TensorParts) -> torch.Tensor:
    """Return the tensor, or the rank's part of it, that these parts make.

    Only a class that the training has imported is used: a stored name imports nothing. Raises LookupError, TypeError.
    """
    module, _, name = parts.kind.partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_unflatten__")):
        raise LookupError(f"the tensor class {parts.kind} is not imported")
    made: torch.Tensor = kind.__tensor_unflatten__(parts.inner, parts.context, parts.shape, parts.stride)
    return made


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, or any other tensor itself."""
    if not hasattr(tensor, "to_local"):
        return tensor
    # With gradients it would take long, and add to the graph of autograd.
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
        return local


def has_bytes(local: torch.Tensor) -> bool:
    """Return True if a tensor of any class can be read as elements in memory."""
    try:
        tensor_bytes.flat(local).view(torch.uint8)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True
