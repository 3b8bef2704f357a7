"""Sums of a fingerprint over tensors on accelerators: by Triton's kernel where it runs, by torch elsewhere."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, partial
from types import ModuleType

import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import batches, torch_sums

_log = logging.getLogger(__name__)


def sums(parts: Iterable[tuple[torch.Tensor, Span | Box]]) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64; one launch and one transfer per device."""
    held = list(parts)
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for position, (tensor, _) in enumerate(held):
        by_device[tensor.device].append(position)
    values = [0] * len(held)
    for device, positions in by_device.items():
        of_device = [held[position] for position in positions]
        kernel = load_kernel(device) if device.type == "cuda" else None
        totals = torch_sums.sums(of_device) if kernel is None else sums_by_kernel(of_device, device, kernel)
        for position, total in zip(positions, totals, strict=True):
            values[position] = total
    return values


def sums_by_kernel(
    parts: Sequence[tuple[torch.Tensor, Span | Box]], device: torch.device, kernel: ModuleType
) -> list[int]:
    """Return the sum over each local tensor's elements by the kernel; all tensors are on `device`."""
    return batches.sums(parts, partial(kernel.add_up, device=device))


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
        _log.warning("torch computes fingerprints on %s, slowly, because Triton failed: %s", device, obstacle)
        return None
    return triton_sums
