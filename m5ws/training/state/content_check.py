"""Checks of a checkpoint's content, from any writer, before memory is allocated for its tensors."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

import torch

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Box, Shard, Tensor
from m5ws.repository import cuts
from m5ws.repository.contents import TableTensor

_MOST_CUT = 8
"""Limit of the dimensions along which one tensor is cut; device meshes have fewer."""


def check_region(tensor: TableTensor, box: Box, shards: Iterable[Shard]) -> None:
    """Raise CorruptObject unless shards fill a region of a tensor, each element once."""
    parts = (cuts.overlap(box, Box(shard.offsets, shard.sizes)) for shard in shards)
    if not _fill(box, [part for part in parts if part is not None]):
        raise CorruptObject(f"the shards of {tensor.name} do not fill its shape {_shown(tensor.shape)} exactly")


def dtype(name: str, stored: str) -> torch.dtype:
    """Return a tensor's element type. Raises CorruptObject if torch has none of that name."""
    kind = getattr(torch, stored, None) if stored.isidentifier() else None
    if not isinstance(kind, torch.dtype):
        raise CorruptObject(f"{name} is stored as {stored[:40]!r}: torch {torch.__version__} has no such element type")
    return kind


def check_shard(tensor: TableTensor | Tensor, shard: Shard) -> None:
    """Raise CorruptObject unless a shard lies inside its tensor and has the bytes that its sizes need."""
    item_bytes = dtype(tensor.name, tensor.dtype).itemsize
    if not len(tensor.shape) == len(shard.offsets) == len(shard.sizes) or any(
        offset + size > whole for offset, size, whole in zip(shard.offsets, shard.sizes, tensor.shape, strict=True)
    ):
        raise CorruptObject(f"a shard of {tensor.name} lies outside its shape {_shown(tensor.shape)}")
    expected, present = math.prod(shard.sizes) * item_bytes, sum(part.size_bytes for part in shard.parts)
    if present != expected:
        raise CorruptObject(f"a shard of {tensor.name} has {present} bytes instead of {expected}")


def _fill(region: Box, parts: Sequence[Box]) -> bool:
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


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape[:8]))}{', …' if len(shape) > 8 else ''})"
