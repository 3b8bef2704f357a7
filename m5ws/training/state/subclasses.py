"""Tensors that are made of tensors, as quantized optimizer states are: codes and scales, and no bytes of their own.

torch's protocol for such classes takes them apart and puts them together: `__tensor_flatten__` names the inner tensors
and gives the rest, `__tensor_unflatten__` is its inverse. What follows it is stored by its inner tensors.
https://docs.pytorch.org/docs/stable/notes/extending.html
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch

from m5ws.training.state import tensor_bytes

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Parts:
    """A tensor taken apart: `kind` is "module:class", `inner` by attribute, live, `context` the rest.

    `shards` is the shape of the whole tensor of which this is a rank's part, or None.
    """

    kind: str
    inner: dict[str, torch.Tensor]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    shards: tuple[int, ...] | None


def parts(tensor: torch.Tensor) -> Parts | None:
    """Return the parts of a tensor that has no bytes of its own, but inner tensors; None of all others."""
    if type(tensor) in _PLAIN:
        return None
    local = local_of(tensor)
    kind = type(local)
    if kind in _PLAIN or not hasattr(kind, "__tensor_unflatten__") or has_bytes(local):
        return None
    names, context = local.__tensor_flatten__()  # type: ignore[attr-defined]
    return Parts(
        kind=f"{kind.__module__}:{kind.__qualname__}",
        inner={name: getattr(local, name) for name in names},
        context=context,
        shape=tuple(local.shape),
        stride=tuple(local.stride()),
        shards=tuple(tensor.shape) if local is not tensor else None,
    )


def join(found: Parts) -> torch.Tensor:
    """Return the tensor, or the rank's part of it, that these parts make.

    Only a class that the training has imported is used: a stored name imports nothing. Raises LookupError, TypeError.
    """
    module, _, name = found.kind.partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.Tensor) and hasattr(kind, "__tensor_unflatten__")):
        raise LookupError(f"no class of tensors {found.kind} is imported")
    made: torch.Tensor = kind.__tensor_unflatten__(found.inner, found.context, found.shape, found.stride)
    return made


@torch.no_grad()
def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor itself; any other tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def has_bytes(local: torch.Tensor) -> bool:
    """Return True if a tensor of any class reads as elements in memory."""
    try:
        tensor_bytes.flat(local).view(torch.uint8)
    except (NotImplementedError, RuntimeError, TypeError):
        return False
    return True
