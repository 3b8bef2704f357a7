"""Sums of a fingerprint over tensors on an accelerator, by operations of torch: slower than a kernel of one pass."""

from collections.abc import Sequence

import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import layout, run_sums
from m5ws.training.state import tensor_bytes

_CHUNK = 1 << 22  # words: enough work for each of the device's kernels
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


def sums(parts: Sequence[tuple[torch.Tensor, Span | Box]]) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64; all tensors are on one device."""
    if not parts:
        return []
    results = torch.stack([_sum(tensor, place) for tensor, place in parts])
    return [value % (1 << 64) for value in results.tolist()]


@torch.no_grad()
def _sum(tensor: torch.Tensor, place: Span | Box) -> torch.Tensor:
    """Return the sum over a local tensor's elements, a 0-dimensional int64 on its device; asynchronous there."""
    flat = tensor_bytes.flat(tensor)
    words = flat.view(_UNSIGNED.get(flat.element_size(), torch.int64))
    per = max(1, flat.element_size() // 8)  # An element of 16 bytes is two words.
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    at = 0
    for rows, length, first, stride in layout.rows(tensor.numel(), place):
        count = rows * length * per
        _add_run(total, words[at : at + count], length * per, first * per, stride * per)
        at += count
    return total


def _add_run(total: torch.Tensor, words: torch.Tensor, length: int, first: int, stride: int) -> None:
    """Add the mixes of words to `total`: rows of this length, as in `run_sums`."""
    size = min(_CHUNK, words.numel())
    mixed, scratch, ramp = (torch.empty(size, dtype=torch.int64, device=words.device) for _ in range(3))
    torch.arange(size, out=ramp)
    for start in range(0, words.numel(), size):
        count = min(size, words.numel() - start)
        bits, low, position = mixed[:count], scratch[:count], ramp[:count]
        torch.add(position, start, out=bits)
        torch.div(bits, length, rounding_mode="floor", out=low)
        # A position is row x length + column, and its index is first + row x stride + column.
        bits.add_(low.mul_(stride - length)).add_(first).mul_(_signed(run_sums.INDEX))
        bits.add_(words[start : start + count].to(torch.int64))
        total.add_(_mix(bits, low).sum())


def _mix(bits: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Mix in place. Shifts of int64 are arithmetic, so the extended sign bits are masked off."""
    for shift, factor in run_sums.ROUNDS:
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            bits.mul_(_signed(factor))
    return bits


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned integer."""
    return value - (1 << 64) if value >> 63 else value
