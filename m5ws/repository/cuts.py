"""Regular shardings as formulas: the region of a rank, and the ranks of a region.

A tensor is cut along one axis after another, each time into pieces of equal size, rounded up; the last pieces may be
shorter or empty. That is the rule of torch's `Shard`. A rank is the first rank, plus its place on each axis times the
axis's distance.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from m5ws.records.checkpoint import Axis, Box

_MOST_CUT = 8
"""Limit of the dimensions along which one tensor is cut; device meshes have fewer."""


def region(shape: Sequence[int], axes: Sequence[Axis], first: int, rank: int) -> Box | None:
    """Return the region of a rank, which may be empty; None if the rank has no part of the tensor."""
    places = _places(axes, rank - first)
    if places is None:
        return None
    offsets, sizes = [0] * len(shape), list(shape)
    for axis, place in zip(axes, places, strict=True):
        whole = sizes[axis.dimension]
        step = -(-whole // axis.pieces)
        start = min(place * step, whole)
        offsets[axis.dimension] += start
        sizes[axis.dimension] = min(step, whole - start)
    return Box(tuple(offsets), tuple(sizes))


def has_region(axes: Sequence[Axis], first: int, rank: int) -> bool:
    """Return True if a rank has a region, which may be empty."""
    return _places(axes, rank - first) is not None


def ranks(shape: Sequence[int], axes: Sequence[Axis], first: int, wanted: Box) -> Iterator[int]:
    """Yield the ranks whose regions overlap a region that is not empty."""
    yield from _overlapping(tuple(axes), first, [0] * len(shape), list(shape), wanted)


def count(shape: Sequence[int], axes: Sequence[Axis]) -> int:
    """Return the number of ranks with a region that is not empty."""
    if not all(shape):
        return 0
    return sum(1 for _ in ranks(shape, axes, 0, Box((0,) * len(shape), tuple(shape))))


def overlap(a: Box, b: Box) -> Box | None:
    """Return the region that two regions have in common, None if that is empty."""
    starts = tuple(map(max, a.offsets, b.offsets))
    ends = [min(x + m, y + n) for x, m, y, n in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)]
    if any(end <= start for start, end in zip(starts, ends, strict=True)):
        return None
    return Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))


def fill(region: Box, parts: Sequence[Box]) -> bool:
    """Return True if parts inside a region cover each of its elements once.

    The parts must have as many elements together as the region. Each corner of the region itself must be a corner of an
    odd number of parts, each other corner of an even number: counted modulo two, the parts then cover the region. Only
    the dimensions in which the region is cut count.
    """
    if sum(math.prod(part.sizes) for part in parts) != math.prod(region.sizes):
        return False
    cut = [d for d, whole in enumerate(region.sizes) if any(part.sizes[d] != whole for part in parts)]
    if len(cut) > _MOST_CUT:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for part in parts:
        corners.update(product(*((part.offsets[d], part.offsets[d] + part.sizes[d]) for d in cut)))
    odd = {corner for corner, times in corners.items() if times % 2}
    return odd == set(product(*((region.offsets[d], region.offsets[d] + region.sizes[d]) for d in cut)))


def _places(axes: Sequence[Axis], distance: int) -> tuple[int, ...] | None:
    """Return the place on each axis of a rank at a distance from the first rank; None if there is none."""
    places: dict[int, int] = {}
    for number in sorted(range(len(axes)), key=lambda number: -axes[number].distance):
        axis = axes[number]
        places[number] = min(distance // axis.distance, axis.pieces - 1) if axis.distance and distance >= 0 else 0
        distance -= places[number] * axis.distance
    return tuple(places[number] for number in range(len(axes))) if distance == 0 else None


def _overlapping(
    axes: tuple[Axis, ...], first: int, offsets: list[int], sizes: list[int], wanted: Box
) -> Iterator[int]:
    if not axes:
        yield first
        return
    axis, d = axes[0], axes[0].dimension
    whole = sizes[d]
    step = -(-whole // axis.pieces)
    low, high = wanted.offsets[d] - offsets[d], wanted.offsets[d] + wanted.sizes[d] - offsets[d]
    for place in range(max(0, low) // step, -(-min(high, whole) // step)) if step else ():
        start = place * step
        inner_offsets = [*offsets[:d], offsets[d] + start, *offsets[d + 1 :]]
        inner_sizes = [*sizes[:d], min(step, whole - start), *sizes[d + 1 :]]
        yield from _overlapping(axes[1:], first + place * axis.distance, inner_offsets, inner_sizes, wanted)
