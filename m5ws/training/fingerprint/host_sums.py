"""Sums of a fingerprint over tensors in main memory."""

from collections.abc import Iterable
from functools import partial

import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import batches, run_sums


def sums(parts: Iterable[tuple[torch.Tensor, Span | Box]], threads: int) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64, in at most `threads` threads."""
    return batches.sums(parts, partial(run_sums.add_up, threads=threads))
