"""Sums of a fingerprint over tensors in main memory."""

from collections.abc import Iterable

import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import batches, run_sums


def sums(parts: Iterable[tuple[torch.Tensor, Span | Box]], threads: int) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64, in at most `threads` threads.

    A place gives the global indices of a tensor's elements.
    """
    results: list[int] = []
    for batch in batches.of(parts):
        runs = batch.runs()
        run_sums.add_up(runs, threads)
        results += batch.totals(runs)
    return results
