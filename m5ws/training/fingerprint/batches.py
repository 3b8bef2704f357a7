"""Tensors as runs of words, which `run_sums` and `triton_sums` add up, and their sums from the sums of the runs."""

import itertools
import math
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import numpy as np
import torch

from m5ws.training.backends.base import Box, Span
from m5ws.training.fingerprint import run_sums
from m5ws.training.state import subclasses, tensor_bytes

_COPIES_BYTES = 256 * 2**20
"""Limit of the copies of tensors that are on another device, or in another order in memory."""
_Rows = tuple[int, int, int, int]
"""Number of rows, length of a row in elements, index of the first element, distance of two rows in indices."""


class Batch:
    """Tensors of one device, whose memory exists as long as the batch does."""

    def __init__(self) -> None:
        self.copies_bytes = 0
        self._held: list[torch.Tensor] = []
        # Numbers, and no object for each tensor: the garbage collector would visit thousands of objects.
        self._runs = array("Q")
        self._owners = array("Q")

    def add(self, tensor: torch.Tensor, place: Span | Box, device: torch.device) -> None:
        """Add a local tensor, copied to `device`, whose elements have the global indices of `place`.

        Raises RuntimeError if torch has released the tensor's memory.
        """
        words = tensor if tensor.device == device else tensor.detach().to(device)
        is_memory = type(words) in subclasses.PLAIN and words.is_contiguous()
        if not is_memory or words.is_conj() or words.is_neg():
            words = tensor_bytes.flat(words)
        if words is not tensor:
            self.copies_bytes += words.nbytes
        address, size, count = words.data_ptr(), words.element_size(), words.numel()
        if count and not address:
            raise RuntimeError("the tensor has no memory")
        # An element of 16 bytes is two words.
        width, per = (size, 1) if size <= 8 else (8, size // 8)
        for rows, length, first, stride in _rows(count, place):
            self._runs.extend((address, width, rows, length * per, first * per, stride * per, 0))
            self._owners.append(len(self._held))
            address += rows * length * size
        self._held.append(words)

    def runs(self) -> run_sums.Runs:
        """Return the runs of all tensors, without their sums."""
        return np.array(self._runs, dtype=np.uint64).reshape(-1, run_sums.SUM + 1)

    def totals(self, runs: run_sums.Runs) -> list[int]:
        """Return the sum of each tensor, modulo 2^64, in the order of `add`; `runs` have their sums."""
        totals = np.zeros(len(self._held), dtype=np.uint64)
        np.add.at(totals, np.array(self._owners), runs[:, run_sums.SUM])
        return totals.tolist()


def sums(
    parts: Iterable[tuple[torch.Tensor, Span | Box]], add_up: Callable[[run_sums.Runs], None], device: torch.device
) -> list[int]:
    """Return the sum over each local tensor's elements, modulo 2^64; `add_up` sets the sums of runs on `device`.

    A place gives the global indices of a tensor's elements.
    """
    results: list[int] = []
    for batch in _of(parts, device):
        runs = batch.runs()
        add_up(runs)
        results += batch.totals(runs)
    return results


def _of(parts: Iterable[tuple[torch.Tensor, Span | Box]], device: torch.device) -> Iterator[Batch]:
    """Yield batches with all tensors in their order, each batch with a limited number of bytes in copies."""
    batch = Batch()
    for tensor, place in parts:
        batch.add(tensor, place, device)
        if batch.copies_bytes > _COPIES_BYTES:
            yield batch
            batch = Batch()
    yield batch


def _rows(count: int, place: Span | Box) -> Iterable[_Rows]:
    """Return the rows of elements with consecutive indices, in the order of a local tensor of `count` elements."""
    if not count:
        return ()
    return ((1, count, place.start, 0),) if isinstance(place, Span) else _rows_of_box(place)


@lru_cache
def _rows_of_box(place: Box) -> list[_Rows]:
    # Kept, since thousands of tensors have few different boxes.
    strides = [math.prod(place.shape[d + 1 :]) for d in range(len(place.shape))]
    start = sum(offset * stride for offset, stride in zip(place.offsets, strides, strict=True))
    cut = [d for d, size in enumerate(place.sizes) if size != place.shape[d]]
    if not cut or all(size == 1 for size in place.sizes[: cut[-1]]):
        return [(1, math.prod(place.sizes), start, 0)]
    # Elements of a row are consecutive. Rows have equal distances, back to a dimension that is cut.
    inner = cut[-1]
    outer = next((d for d in reversed(range(inner)) if d in cut), 0)
    length = place.sizes[inner] * strides[inner]
    rows = math.prod(place.sizes[outer:inner])
    return [
        (rows, length, start + sum(map(operator.mul, position, strides)), strides[inner - 1])
        for position in itertools.product(*map(range, place.sizes[:outer]))
    ]
