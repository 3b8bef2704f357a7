"""Checks of a checkpoint's content, from any writer, before memory is allocated for its tensors."""

import math
from collections import Counter
from itertools import product

import torch

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Content, Shard
from m5ws.records.checkpoint import Tensor as TensorRecord

_MOST_CUT = 8
"""Limit of the dimensions along which one tensor is cut; device meshes have fewer."""


def check(content: Content) -> None:
    """Raise CorruptObject unless each tensor has a known type, shards that fill it, and enough bytes."""
    if len(content.ranks) != content.world:
        raise CorruptObject(f"the checkpoint has the state of {len(content.ranks)} of {content.world} ranks")
    for tensor in content.tensors:
        item_bytes = dtype(tensor.name, tensor.dtype).itemsize
        for shard in tensor.shards:
            _check_shard(tensor, shard, item_bytes)
        # Empty tensors of DeepSpeed and DCP have no shards at all.
        if math.prod(tensor.shape) and not _fill(tensor):
            raise CorruptObject(f"the shards of {tensor.name} do not fill its shape {_shown(tensor.shape)} exactly")


def dtype(name: str, stored: str) -> torch.dtype:
    """Return a tensor's element type. Raises CorruptObject if torch has none of that name."""
    kind = getattr(torch, stored, None) if stored.isidentifier() else None
    if not isinstance(kind, torch.dtype):
        raise CorruptObject(f"{name} is stored as {stored[:40]!r}: torch {torch.__version__} has no such element type")
    return kind


def _check_shard(tensor: TensorRecord, shard: Shard, item_bytes: int) -> None:
    if not len(tensor.shape) == len(shard.offsets) == len(shard.sizes) or any(
        offset + size > whole for offset, size, whole in zip(shard.offsets, shard.sizes, tensor.shape, strict=True)
    ):
        raise CorruptObject(f"a shard of {tensor.name} lies outside its shape {_shown(tensor.shape)}")
    expected, present = math.prod(shard.sizes) * item_bytes, sum(part.size_bytes for part in shard.parts)
    if present != expected:
        raise CorruptObject(f"a shard of {tensor.name} has {present} bytes instead of {expected}")


def _fill(tensor: TensorRecord) -> bool:
    """Return True if the shards, which lie inside the shape, cover each of its elements once.

    The shards must have as many elements together as the shape. Each corner of the shape itself must be a corner of an
    odd number of shards, each other corner of an even number: counted modulo two, the shards then cover the shape. Only
    the dimensions in which the tensor is cut count.
    """
    shards = [shard for shard in tensor.shards if math.prod(shard.sizes)]
    if sum(math.prod(shard.sizes) for shard in shards) != math.prod(tensor.shape):
        return False
    cut = [d for d, whole in enumerate(tensor.shape) if any(shard.sizes[d] != whole for shard in shards)]
    if len(cut) > _MOST_CUT:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for shard in shards:
        corners.update(product(*((shard.offsets[d], shard.offsets[d] + shard.sizes[d]) for d in cut)))
    odd = {corner for corner, times in corners.items() if times % 2}
    return odd == set(product(*((0, tensor.shape[d]) for d in cut)))


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape[:8]))}{', …' if len(shape) > 8 else ''})"
