"""The table of a state's tensors, on which all ranks agree: the ranks that store each, and the cuts between them.

The ranks exchange digests of their layouts. Usually these are equal, and each rank makes the same table by itself.
Otherwise rank 0 gets one layout for each kind of rank, such as a pipeline stage, and makes the table for all.
Invariant: a table is a function of the layouts alone, and each element of a tensor has one rank that stores it.

Whole tensors that rank 0 stores have a share of their own, as if of a rank after the last (`contents.Parts`). All ranks
need them, but not the shards of rank 0.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from m5ws.repository import cuts
from m5ws.repository.contents import TableTensor
from m5ws.training.backends.base import COPIES, Cut
from m5ws.training.compat import sharded
from m5ws.training.runtime import classes
from m5ws.training.runtime.classes import Class
from m5ws.training.runtime.collectives import Group
from m5ws.training.state.plain_state import StateError

_SHARE_BYTES = 64 * 2**20
"""Copies are stored by as few ranks as have at least this share each, so that a restore reads few parts."""


class Placed(NamedTuple):
    """The layout of a tensor. Without a formula for its shards, it has no `cut`.

    `sharding` is None without shards, else the pieces and the rule of each cut, without copies. Ranks with equal
    `sharding`, of any mesh, have the same regions.
    """

    dtype: str
    shape: tuple[int, ...]
    item_bytes: int
    sharding: tuple[str, ...] | None
    cut: Cut | None


Description = dict[str, Placed]


def describe(state: Mapping[str, torch.Tensor]) -> Description:
    """Return the layouts of tensors on this rank. Not collective."""
    layouts: dict[tuple[object, ...], tuple[tuple[str, ...], Cut | None]] = {}
    known: dict[Placed, Placed] = {}
    described: Description = {}
    for name, tensor in state.items():
        sharding, cut = None, None
        if isinstance(tensor, DTensor):
            layout = (tensor.shape, tensor.device_mesh, tensor.placements)
            if layout not in layouts:
                pairs = zip(tensor.device_mesh.mesh.shape, tensor.placements, strict=True)
                rules = (f"{rule} of {pieces}" for pieces, rule in pairs if pieces > 1 and not rule.is_replicate())
                layouts[layout] = tuple(rules), formula(tensor)
            sharding, cut = layouts[layout]
        dtype = str(tensor.dtype).removeprefix("torch.")
        placed = Placed(dtype, tuple(tensor.shape), tensor.dtype.itemsize, sharding, cut)
        # Rank 0 may get many layouts: equal values are one object, and stay one in a message.
        described[name] = known.setdefault(placed, placed)
    return described


def agree(own: Description, group: Group) -> list[TableTensor]:
    """Return the tensors of all ranks in order of names; collective. Raises StateError, on all ranks."""
    return classes.decide(own, arrange, group)


def arrange(layouts: Sequence[Class[Description]]) -> list[TableTensor]:
    """Return the table of classes of ranks, in order of names. Raises StateError."""
    return _Arrangement(layouts).table()


class _Arrangement:
    """Deals the tensors to the ranks that store them."""

    def __init__(self, layouts: Sequence[Class[Description]]) -> None:
        self._classes = layouts
        self._world = sum(len(ranks) for ranks, _ in layouts)
        self._dealt: dict[object, int] = {}
        self._totals: dict[object, int] = {}
        self._ranks: dict[tuple[int, ...], list[int]] = {}
        self._checked: set[tuple[object, ...]] = set()

    def table(self) -> list[TableTensor]:
        holders: dict[str, tuple[int, ...]] = {}
        for number, (_, described) in enumerate(self._classes):
            for name in described:
                holders[name] = (*holders.get(name, ()), number)
        for name, numbers in holders.items():
            key, size_bytes, _ = self._copies(name, numbers)
            self._totals[key] = self._totals.get(key, 0) + size_bytes
        return [self._placed(name, holders[name]) for name in sorted(holders)]

    def _copies(self, name: str, numbers: tuple[int, ...]) -> tuple[object, int, int]:
        """Return the ranks that have copies of a tensor, its bytes on one rank, and the number of copies."""
        placed = self._classes[numbers[0]][1][name]
        size_bytes = math.prod(placed.shape) * placed.item_bytes
        if placed.sharding is None:
            return numbers, size_bytes, len(self._holders(numbers))
        if placed.cut is None:
            return None, size_bytes, 1
        copies = math.prod(pieces for _, pieces, _ in placed.cut.copies)
        return placed.cut, size_bytes // math.prod(axis.pieces for axis in placed.cut.cuts), copies

    def _placed(self, name: str, numbers: tuple[int, ...]) -> TableTensor:
        held = [self._classes[number][1][name] for number in numbers]
        placed = held[0]
        if any((each.dtype, each.shape) != (placed.dtype, placed.shape) for each in held):
            raise StateError(f"{name} has another shape or type on another rank")
        if any(each.sharding != placed.sharding for each in held):
            raise StateError(f"{name} is sharded differently on another rank")
        if placed.sharding is None:
            rank = self._holders(numbers)[self._deal(name, numbers)]
            return TableTensor(name, placed.dtype, placed.shape, (), rank or self._world)
        found = [each.cut for each in held if each.cut is not None]
        if len(found) < len(held) or any(cut.axes != found[0].axes for cut in found):
            return TableTensor(name, placed.dtype, placed.shape, None, 0)
        # Several meshes with the same cuts have a copy each.
        cut = min(found)
        self._check(name, cut, numbers)
        first, copy = cut.first, self._deal(name, numbers)
        for _, pieces, distance in cut.copies:
            first += copy % pieces * distance
            copy //= pieces
        return TableTensor(name, placed.dtype, placed.shape, cut.cuts, first)

    def _deal(self, name: str, numbers: tuple[int, ...]) -> int:
        """Return the number of the copy that is stored: neighbours in the table have the same, up to a share."""
        key, size_bytes, copies = self._copies(name, numbers)
        share = max(_SHARE_BYTES, -(-self._totals[key] // copies))
        before = self._dealt.get(key, 0)
        self._dealt[key] = before + size_bytes
        return min((before + size_bytes // 2) // share, copies - 1)

    def _holders(self, numbers: tuple[int, ...]) -> list[int]:
        if numbers not in self._ranks:
            self._ranks[numbers] = sorted(rank for number in numbers for rank in self._classes[number][0])
        return self._ranks[numbers]

    def _check(self, name: str, cut: Cut, numbers: tuple[int, ...]) -> None:
        """Raise StateError if a rank of the tensor's mesh does not have the tensor."""
        if (cut, numbers) in self._checked:
            return
        self._checked.add((cut, numbers))
        ranks = self._holders(numbers)
        for rank in cut.ranks():
            at = bisect_left(ranks, rank)
            if at == len(ranks) or ranks[at] != rank:
                raise StateError(f"rank {rank} lacks its part of {name}")


def formula(tensor: DTensor) -> Cut | None:
    """Return the formula of a sharded tensor; None if none gives this rank's region."""
    mesh = tensor.device_mesh
    first, distances = _grid(mesh)
    if distances is None:
        return None
    cut: list[tuple[int, int, int]] = []
    late: list[tuple[int, int, int]] = []
    for placement, pieces, distance in zip(tensor.placements, mesh.mesh.shape, distances, strict=True):
        if pieces == 1:
            continue
        if isinstance(placement, Replicate):
            cut.append((COPIES, pieces, distance))
        elif type(placement) is Shard:
            cut.append((placement.dim, pieces, distance))
        elif hasattr(placement, "split_factor"):
            # FSDP of tensors that tensor parallelism has cut before: the first axis of the mesh is the inner cut.
            late.append((int(placement.dim), pieces, distance))  # type: ignore[attr-defined]
        else:
            return None
    found = Cut(first, (*cut, *late))
    return found if _is_exact(tensor, found) else None


def _grid(mesh: DeviceMesh) -> tuple[int, list[int] | None]:
    """Return the first rank of a mesh and the distances of its neighbours; None if they are not regular."""
    ranks = mesh.mesh.cpu()
    first = int(ranks.flatten()[0])
    distances = [int(ranks.select(d, 1).flatten()[0]) - first if size > 1 else 0 for d, size in enumerate(ranks.shape)]
    regular = torch.full(ranks.shape, first)
    for d, (size, distance) in enumerate(zip(ranks.shape, distances, strict=True)):
        shape = [size if each == d else 1 for each in range(ranks.ndim)]
        regular = regular + (torch.arange(size) * distance).view(shape)
    return first, distances if bool((regular == ranks).all()) else None


def _is_exact(tensor: DTensor, found: Cut) -> bool:
    """Return True if a formula gives the region that torch gives this rank; True for a rank without a region."""
    if (coordinate := tensor.device_mesh.get_coordinate()) is None:
        return True
    rank = int(tensor.device_mesh.mesh[tuple(coordinate)])
    sizes, offsets = sharded.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    for start in Cut(found.first, found.copies).ranks():
        if (box := cuts.region(tensor.shape, found.cuts, start, rank)) is not None:
            return box.sizes == sizes and (not all(sizes) or box.offsets == offsets)
    return False
