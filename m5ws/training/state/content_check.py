"""Checks of a checkpoint's content, from any writer, before memory is allocated for its tensors."""

import math
from collections.abc import Iterable

import torch

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Box, Shard, Tensor
from m5ws.repository import cuts
from m5ws.repository.contents import TableTensor


def check_region(tensor: TableTensor, box: Box, shards: Iterable[Shard]) -> None:
    """Raise CorruptObject unless shards fill a region of a tensor, each element once."""
    parts = (cuts.overlap(box, Box(shard.offsets, shard.sizes)) for shard in shards)
    if not cuts.fill(box, [part for part in parts if part is not None]):
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


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape[:8]))}{', …' if len(shape) > 8 else ''})"
