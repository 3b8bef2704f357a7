"""The sum of a fingerprint over consecutive words in main memory, by NumPy: the same number as `fingerprint`'s.

NumPy has unsigned 64-bit shifts, so that a shift takes one pass where torch takes two. Its calls are cheaper, too: it
takes about half the time.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 15
_MASK = (1 << 64) - 1


def total(
    words: NDArray[np.unsignedinteger], first: int, index: int, rounds: tuple[tuple[int, int | None], ...]
) -> int:
    """Return the sum, modulo 2^64, of the mixes of flat unsigned `words`, of which the first has index `first`.

    `index` is the factor of an index. Each of `rounds` is a shift and the factor after it; all modulo 2^64.
    """
    ramp = _ramp(index & _MASK)
    steps = [(np.uint64(shift), None if factor is None else np.uint64(factor & _MASK)) for shift, factor in rounds]
    mixed, scratch = np.empty((2, min(_CHUNK, words.size)), dtype=np.uint64)
    result = 0
    for start in range(0, words.size, _CHUNK):
        part = words[start : start + _CHUNK]
        bits, shifted = mixed[: part.size], scratch[: part.size]
        np.copyto(bits, part)
        np.add(bits, ramp[: part.size], out=bits)
        np.add(bits, np.uint64((first + start) * index & _MASK), out=bits)
        for shift, factor in steps:
            np.right_shift(bits, shift, out=shifted)
            np.bitwise_xor(bits, shifted, out=bits)
            if factor is not None:
                np.multiply(bits, factor, out=bits)
        result += int(bits.sum())
    return result & _MASK


@cache
def _ramp(index: int) -> NDArray[np.uint64]:
    """Return the terms that the positions in a chunk add to its words."""
    return np.arange(_CHUNK, dtype=np.uint64) * np.uint64(index)
