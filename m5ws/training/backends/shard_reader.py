"""Stored tensors into the live tensors of this rank, on whatever layout they have now.

No rank reads for another rank: the regions that it needs are looked up by the formulas of the table, in the shares of
the ranks that stored them. Only for tensors without a formula, all shares are read. Nothing is unpickled.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import DTensor

from m5ws.records.checkpoint import Box, Shard, Share
from m5ws.records.tree import Slice
from m5ws.repository import contents, cuts
from m5ws.repository.contents import Parts, TableTensor
from m5ws.repository.objects import Objects, Reading, into, read_parts
from m5ws.training.compat import sharded
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import tensor_bytes
from m5ws.training.state.plain_state import RestoreError

_SCRATCH_BYTES = 512 * 2**20
"""Limit of the memory for rows that cannot be read directly into their tensor."""


@dataclass
class _Target:
    """A live tensor to be filled: its region of the stored tensor, and the shards found for the region."""

    tensor: TableTensor
    memory: torch.Tensor
    box: Box
    found: dict[tuple[int, ...], Shard] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        held = (cuts.overlap(self.box, Box(shard.offsets, shard.sizes)) for shard in self.found.values())
        return sum(math.prod(box.sizes) for box in held if box is not None) >= math.prod(self.box.sizes)


def read(
    state: Mapping[str, torch.Tensor], table: Sequence[TableTensor], parts: Parts, rank: int, objects: Objects
) -> None:
    """Fill the tensors of a flat state in place; not collective. `rank` is this rank's number.

    Names that are not in the table are own tensors of this rank or rank 0. Raises NotFound, CorruptObject,
    RestoreError.
    """
    places = {tensor.name: tensor for tensor in table}
    targets = {name: target for name, tensor in state.items() if (target := _target(name, tensor, places)) is not None}
    regular = {name: target for name, target in targets.items() if target.tensor.axes is not None}
    for number, names in _sources(regular.values()).items():
        _collect(parts.share(number), number, table, {name: targets[name] for name in names})
    rest = {name: target for name, target in targets.items() if target.tensor.axes is None}
    for number, share in parts.near(rank) if rest else ():
        _collect(share, number, table, rest)
    if any(not target.is_complete for target in rest.values()):
        for number, share in parts.all():
            _collect(share, number, table, rest)
    for target in targets.values():
        content_rules.check_region(target.tensor, target.box, target.found.values())
    _fill_all(targets.values(), objects)


def _target(name: str, tensor: torch.Tensor, places: Mapping[str, TableTensor]) -> _Target | None:
    """Return the target of a live tensor; None if this rank has no element of it. Raises RestoreError."""
    memory, box = tensor.detach(), Box((0,) * tensor.ndim, tuple(tensor.shape))
    if isinstance(tensor, DTensor):
        if tensor.device_mesh.get_coordinate() is None:
            return None
        sizes, offsets = sharded.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
        memory, box = sharded.local_part(tensor).detach(), Box(offsets, sizes)
    if not memory.numel():
        return None
    dtype = str(tensor.dtype).removeprefix("torch.")
    stored = places.get(name) or TableTensor(name, dtype, tuple(tensor.shape), None)
    if stored.shape != tuple(tensor.shape):
        raise RestoreError(f"{name} is stored with another shape: {stored.shape}")
    if stored.dtype != dtype:
        raise RestoreError(f"{name} is stored as {stored.dtype} and is {tensor.dtype} now")
    if tuple(memory.shape) != box.sizes:
        raise RestoreError(f"{name} has shape {tuple(memory.shape)} instead of {box.sizes} on this rank")
    return _Target(stored, memory, box)


def _sources(targets: Iterable[_Target]) -> dict[int, set[str]]:
    """Return the ranks whose shares contain the regions, each with the names of the tensors, in order of ranks."""
    ranks: dict[tuple[object, ...], list[int]] = {}
    names: dict[int, set[str]] = {}
    for target in targets:
        tensor = target.tensor
        key = tensor.shape, tensor.axes, tensor.first, target.box
        if key not in ranks:
            ranks[key] = list(cuts.ranks(tensor.shape, tensor.axes or (), tensor.first, target.box))
        for rank in ranks[key]:
            names.setdefault(rank, set()).add(tensor.name)
    return dict(sorted(names.items()))


def _collect(share: Share, rank: int, table: Sequence[TableTensor], wanted: Mapping[str, _Target]) -> None:
    """Add the shards of a share to the targets whose regions they overlap."""
    for tensor, shard in contents.shards(share, rank, table, lambda tensor: tensor.name in wanted):
        target = wanted[tensor.name]
        content_rules.check_shard(tensor, shard)
        if tensor.dtype != target.tensor.dtype:
            raise RestoreError(f"{tensor.name} is stored as {tensor.dtype} and is {target.tensor.dtype} now")
        if tensor.shape != target.tensor.shape:
            raise RestoreError(f"{tensor.name} is stored with another shape: {tensor.shape}")
        if cuts.overlap(target.box, Box(shard.offsets, shard.sizes)) is not None:
            # Ranks that hold copies of an irregular tensor may each have stored the same region.
            target.found.setdefault(shard.offsets, shard)


def _fill_all(targets: Iterable[_Target], objects: Objects) -> None:
    batch, held = list[_Reading](), 0
    for target in targets:
        for shard in target.found.values():
            batch.append(reading := _begun(target, shard))
            held += 0 if reading.scratch is None else reading.scratch.nbytes
            if held > _SCRATCH_BYTES:
                _finish(batch, objects)
                batch, held = [], 0
    _finish(batch, objects)


def _begun(target: _Target, shard: Shard) -> "_Reading":
    """Return the reading of the part of a shard that is in a target, directly into its memory where possible."""
    common = cuts.overlap(target.box, Box(shard.offsets, shard.sizes))
    assert common is not None
    memory = target.memory
    for d, (start, size) in enumerate(zip(common.offsets, common.sizes, strict=True)):
        memory = memory.narrow(d, start - target.box.offsets[d], size)
    row_bytes = math.prod(shard.sizes[1:]) * memory.dtype.itemsize
    first, count = (common.offsets[0] - shard.offsets[0], common.sizes[0]) if shard.sizes else (0, 1)
    parts, base = _covering(shard.parts, first * row_bytes, (first + count) * row_bytes)
    size_bytes = sum(part.size_bytes for part in parts)
    name = target.tensor.name
    whole = common.sizes[1:] == shard.sizes[1:]
    direct = tensor_bytes.writable(memory) if whole and size_bytes == memory.nbytes else None
    if direct is not None:
        return _Reading(memory, into(parts, direct, name))
    scratch = torch.empty(size_bytes, dtype=torch.uint8)
    shape = (count, *shard.sizes[1:]) if shard.sizes else ()
    offsets = tuple(a - b for a, b in zip(common.offsets, shard.offsets, strict=True))
    return _Reading(memory, into(parts, scratch.numpy().data, name), scratch, first * row_bytes - base, shape, offsets)


def _finish(batch: Sequence["_Reading"], objects: Objects) -> None:
    """Read the parts of a batch, all at once, and fill the tensors."""
    read_parts(objects, [part for reading in batch for part in reading.parts])
    for reading in batch:
        reading.finish()


@dataclass(frozen=True)
class _Reading:
    """The reading of a region into `target`, or into `scratch`: from byte `start` on, whole rows of its shard."""

    target: torch.Tensor
    parts: list[Reading]
    scratch: torch.Tensor | None = None
    start: int = 0
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()

    def finish(self) -> None:
        """Copy the rows in scratch into the target."""
        if self.scratch is None:
            return
        dtype = self.target.dtype
        rows = self.scratch[self.start : self.start + math.prod(self.shape) * dtype.itemsize]
        # Not `.view(dtype)` at once: a part may begin at an offset that the element type does not allow.
        source = (rows.clone() if self.start % dtype.itemsize else rows).view(dtype).view(self.shape)
        for dimension, (offset, length) in enumerate(zip(self.offsets, self.target.shape, strict=True)):
            source = source.narrow(dimension, offset if dimension else 0, length)
        tensor_bytes.fill(self.target, source)


def _covering(parts: Sequence[Slice], start: int, end: int) -> tuple[list[Slice], int]:
    """Return the parts that hold bytes [start, end) of their concatenation, and the offset of the first part."""
    wanted: list[Slice] = []
    position, base = 0, start
    for part in parts:
        if position < end and position + part.size_bytes > start:
            base = position if not wanted else base
            wanted.append(part)
        position += part.size_bytes
    return wanted, base
