"""Sums of a fingerprint over words in main memory: by the compiled kernel, or by NumPy where it was not built.

The words are given as runs, rows of a matrix of unsigned 64-bit integers:

    address, width, rows, length, first, stride, sum

A run is `rows` times `length` words of `width` bytes (1, 2, 4 or 8), one after another from `address`. The first word
has the index `first`, and each row begins `stride` indices after the row before. `sum` is the result: the sum of the
words' mixes, modulo 2^64.
"""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.uint64]
ADDRESS, WIDTH, ROWS, LENGTH, FIRST, STRIDE, SUM = range(7)
# The factor of an index is the golden ratio, which separates neighbouring indices. The rounds, each a shift and the
# factor after it, are splitmix64's finalizer.
INDEX = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None))

_MASK = (1 << 64) - 1
_CHUNK = 1 << 15  # words: a chunk and its scratch space stay in the L2 cache
_RAMP = np.arange(_CHUNK, dtype=np.uint64) * np.uint64(INDEX)


def matrix(rows: Sequence[tuple[int, ...]]) -> Runs:
    """Return runs, each with a place for its sum, as a matrix."""
    return np.array(rows, dtype=np.uint64).reshape(-1, SUM + 1)


def add_up_by_numpy(runs: Runs) -> None:
    """Set the sum of each run by NumPy: slower than the kernel, and the reference for it."""
    for run in runs:
        address, width, rows, length, first, stride, _ = (int(value) for value in run)
        memory = (ctypes.c_uint8 * (width * rows * length)).from_address(address)
        run[SUM] = _total(np.ctypeslib.as_array(memory).view(f"u{width}"), length, first, stride)


def _total(words: NDArray[np.unsignedinteger], length: int, first: int, stride: int) -> int:
    mixed, scratch = np.empty((2, min(_CHUNK, words.size)), dtype=np.uint64)
    result = 0
    for start in range(0, words.size, _CHUNK):
        part = words[start : start + _CHUNK]
        bits, shifted = mixed[: part.size], scratch[: part.size]
        np.copyto(bits, part)
        np.add(bits, _RAMP[: part.size], out=bits)
        np.add(bits, np.uint64((first + start) * INDEX & _MASK), out=bits)
        if length < words.size:
            # A row begins `stride` indices after the row before, instead of `length`.
            row = np.arange(start, start + part.size, dtype=np.uint64) // np.uint64(length)
            np.add(bits, row * np.uint64((stride - length) * INDEX & _MASK), out=bits)
        for shift, factor in ROUNDS:
            np.right_shift(bits, np.uint64(shift), out=shifted)
            np.bitwise_xor(bits, shifted, out=bits)
            if factor is not None:
                np.multiply(bits, np.uint64(factor), out=bits)
        result += int(bits.sum())
    return result & _MASK


add_up: Callable[[Runs], None]
"""Sets the sum of each run; the memory of all runs must exist until it returns."""
try:
    from m5ws.training.fingerprint import kernel
except ImportError:
    add_up = add_up_by_numpy
else:
    add_up = kernel.sums
