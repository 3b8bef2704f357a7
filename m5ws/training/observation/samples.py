"""Readings of tensors that enter and leave modules, without waiting for the device.

Logits take gigabytes in a step, and hashing them would cost more than the step. A digest has at most `_ELEMENTS` evenly
spaced elements of a tensor. A difference in others shows a step later, in the loss or in the gradients.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import blake3
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from m5ws.training.compat import tensors
from m5ws.training.state import subclasses, tensor_bytes
from m5ws.training.state.scalars import read_later

_ELEMENTS = 4096

Reader = Callable[[], torch.Tensor]
Sample = tuple[str, Reader | None]
"""The description of a tensor, and a function that returns its elements on the host, None if it has none to read."""


def take(tensor: torch.Tensor) -> Sample:
    """Return a sample of a tensor."""
    part = local(tensor)
    if part.is_nested:
        return f"{part.dtype} nested;", None
    is_readable = not part.is_meta and part.layout == torch.strided
    reader = read_later(tensor_bytes.flat(_spaced(part))) if is_readable else None
    return f"{part.dtype} {tuple(part.shape)};", reader


def digest(samples: list[Sample], count: int) -> str:
    """Return the digest of the samples of `count` forward passes. Waits for copies from a device."""
    hasher = blake3.blake3(f"{count};".encode())
    for description, reader in samples:
        hasher.update(description.encode())
        if reader is not None:
            values: Any = reader().view(torch.uint8).numpy()
            hasher.update(values)
    return hasher.hexdigest()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds, without its graph."""
    return subclasses.local_of(tensor.detach())


def memory(tensor: torch.Tensor) -> list[StorageWeakRef]:
    """Return the memory of a dense tensor's part on this rank, without keeping it alive; none of another tensor."""
    part = local(tensor)
    has_memory = part.layout == torch.strided and not part.is_nested and not tensors.is_wrapper(part)
    # Other data can have the same address, once the memory is free and used again.
    return [StorageWeakRef(part.untyped_storage())] if has_memory else []  # type: ignore[no-untyped-call]


def _spaced(tensor: torch.Tensor) -> torch.Tensor:
    """Return at most `_ELEMENTS` elements, evenly spaced in row-major order."""
    count = tensor.numel()
    if count <= _ELEMENTS:
        return tensor
    # An odd distance reaches all columns of a matrix whose rows have an even length.
    distance = -(-count // _ELEMENTS) | 1
    if tensor.is_contiguous():
        return tensor.view(-1)[::distance]
    return tensor[_indices(tuple(tensor.shape), distance, tensor.device)]


@lru_cache(maxsize=16)
def _indices(shape: tuple[int, ...], distance: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return torch.unravel_index(torch.arange(0, math.prod(shape), distance, device=device), shape)
