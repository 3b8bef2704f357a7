"""A tensor's elements as bytes, row-major, whatever its memory looks like, and back into it.

Memory may be in another order (a transpose), hold an element in several places of the tensor (`expand`), or hold what
is yet to be conjugated or negated; what is stored is what the tensor says, never what its memory says.
"""

import torch


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in a row, where it lives; a view of it where it can be one."""
    # Bits cannot be had from a tensor that is conjugated or negated only when it is read.
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def readable(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's bytes, row-major, on the host; a view of the tensor itself where it can be one."""
    return flat(tensor.detach().cpu()).view(torch.uint8).numpy().data


def writable(tensor: torch.Tensor) -> memoryview | None:
    """Return the tensor's own memory, if its bytes, row-major, are just that; else it takes `fill`."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.view(-1).view(torch.uint8).numpy().data


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy elements into a tensor; into one that was expanded, those that it has in memory."""
    for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and not stride:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)
