"""The global indices of a local tensor's elements."""

import itertools
import math
import operator
from collections.abc import Iterable
from functools import lru_cache

from m5ws.training.backends.base import Box, Span

Rows = tuple[int, int, int, int]
"""Number of rows, length of a row in elements, index of the first element, distance of two rows in indices."""


def rows(count: int, place: Span | Box) -> Iterable[Rows]:
    """Return the rows of elements with consecutive indices, in the order of a local tensor of `count` elements."""
    if not count:
        return ()
    return ((1, count, place.start, 0),) if isinstance(place, Span) else _rows_of_box(place)


@lru_cache
def _rows_of_box(place: Box) -> list[Rows]:
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
