"""Sums of a fingerprint over tensors in main memory, as the runs of words that `run_sums` adds up."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import layout, run_sums
from m5ws.training.state import subclasses, tensor_bytes

_RUN_BYTES = 4 * 2**20
"""Longer runs are cut, so that several threads share a large tensor."""
_COPIES_BYTES = 256 * 2**20
"""Limit of the copies of tensors that are in another order in memory."""


def sums(parts: Iterable[tuple[torch.Tensor, Span | Box]], threads: int) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64, in at most `threads` threads.

    A place gives the global indices of a tensor's elements.
    """
    results: list[int] = []
    batch = _Batch(threads)
    for tensor, place in parts:
        batch.add(tensor, place)
        if batch.copies_bytes > _COPIES_BYTES:
            results += batch.sums()
            batch = _Batch(threads)
    return results + batch.sums()


class _Batch:
    """Tensors that are added up together, and the copies of those that are in another order in memory."""

    def __init__(self, threads: int) -> None:
        self.copies_bytes = 0
        self._threads = threads
        self._held: list[torch.Tensor] = []
        self._runs: list[tuple[int, ...]] = []
        self._owners: list[int] = []

    def add(self, tensor: torch.Tensor, place: Span | Box) -> None:
        words = tensor
        if not (
            type(tensor) in subclasses.PLAIN and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        ):
            words = tensor_bytes.flat(tensor)
            self.copies_bytes += words.nbytes
        address, size, count = words.data_ptr(), words.element_size(), words.numel()
        if count and not address:
            raise RuntimeError("the tensor has no memory")
        # An element of 16 bytes is two words.
        width, per = (size, 1) if size <= 8 else (8, size // 8)
        for rows, length, first, stride in layout.rows(count, place):
            run = (address, width, rows, length * per, first * per, stride * per, 0)
            runs = [run] if rows * length * size <= _RUN_BYTES else list(_cut(*run[:-1]))
            self._runs += runs
            self._owners += [len(self._held)] * len(runs)
            address += rows * length * size
        self._held.append(words)

    def sums(self) -> list[int]:
        """Return the sum of each tensor that was added."""
        runs = run_sums.matrix(self._runs)
        run_sums.add_up(runs, self._threads)
        totals = np.zeros(len(self._held), dtype=np.uint64)
        np.add.at(totals, self._owners, runs[:, run_sums.SUM])
        return totals.tolist()


def _cut(address: int, width: int, rows: int, length: int, first: int, stride: int) -> Iterator[tuple[int, ...]]:
    """Yield runs of at most _RUN_BYTES with the same words."""
    most = _RUN_BYTES // width
    height, columns = max(1, most // length), min(length, most)
    for row in range(0, rows, height):
        for column in range(0, length, columns):
            at = address + width * (row * length + column)
            part = (min(height, rows - row), min(columns, length - column))
            yield at, width, *part, first + row * stride + column, stride, 0
