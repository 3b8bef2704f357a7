"""Sums of a fingerprint over tensors on any devices: by Triton's kernel where it runs, in main memory elsewhere."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from types import ModuleType

import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import batches, run_sums

_log = logging.getLogger(__name__)
_HOST = torch.device("cpu")


def sums(parts: Sequence[tuple[torch.Tensor, Span | Box]]) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64; one launch and one transfer per device."""
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for position, (tensor, _) in enumerate(parts):
        device = tensor.device if tensor.is_cuda and load_kernel(tensor.device) is not None else _HOST
        by_device[device].append(position)
    values = [0] * len(parts)
    for device, positions in by_device.items():
        kernel = load_kernel(device) if device.type == "cuda" else None
        add_up = run_sums.add_up if kernel is None else partial(kernel.add_up, device=device)
        totals = batches.sums((parts[position] for position in positions), add_up, device)
        for position, total in zip(positions, totals, strict=True):
            values[position] = total
    return values


@cache
def load_kernel(device: torch.device) -> ModuleType | None:
    """Return the module of Triton's kernel; None if Triton is not installed, or cannot run the kernel on `device`.

    The first call compiles the kernel, which takes seconds once on a machine.
    """
    try:
        from m5ws.training.fingerprint import triton_sums
    except ImportError:
        return None
    if obstacle := triton_sums.find_obstacle(device):
        _log.warning("fingerprints on %s are slow, copied to main memory, because Triton failed: %s", device, obstacle)
        return None
    return triton_sums
