"""A tensor's elements as bytes, row-major, whatever its layout in memory, and back into it.

Memory may be in another order (a transpose), or hold an element at several indices of the tensor (`expand`). It may
hold values that are conjugated or negated when they are read. The stored bytes are the tensor's values, never its raw
memory.
"""

import torch


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as one dimension, on its device; a view of the tensor if possible."""
    # A lazily conjugated or negated tensor has no readable bits of its own.
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def readable(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's bytes, row-major, on the host; a view of the tensor if possible."""
    return flat(tensor.detach().cpu()).view(torch.uint8).numpy().data


def writable(tensor: torch.Tensor) -> memoryview | None:
    """Return the tensor's memory if its row-major bytes are exactly that; None if it needs `fill`."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.view(-1).view(torch.uint8).numpy().data


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy elements into a tensor; into an expanded tensor, only the elements that it has in memory."""
    for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and not stride:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)
