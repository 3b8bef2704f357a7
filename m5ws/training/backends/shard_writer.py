"""The tensors of one rank onto a repository: raw row-major bytes in content-addressed objects.

No rank plans for another rank: the table of all tensors (`placement`) gives each rank the shards that it stores.
Tensors are cut on a grid over the whole tensor, so that unchanged bytes are objects that the repository already has.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.distributed.tensor import DTensor, Replicate

from m5ws.records.checkpoint import Box, OwnTensor, Share
from m5ws.repository import contents, cuts
from m5ws.repository.contents import Stored, TableTensor
from m5ws.repository.objects import Objects, write_parts
from m5ws.training.compat import sharded
from m5ws.training.state import tensor_bytes
from m5ws.training.state.plain_state import StateError

State = Mapping[str, torch.Tensor]


def write(
    state: State, own: State, table: Sequence[TableTensor], rank: int, world: int, objects: Objects
) -> tuple[Share, Share]:
    """Store this rank's part of a state; not collective. The bytes are durable on return.

    Return its share, and on rank 0 the share of whole tensors for all ranks. `own` are the tensors that this rank has
    under names of its own, which the table lacks.
    """
    wanted = list(plan(state, table, rank, world))
    slices = write_parts(objects, _pieces(state, wanted, own, objects.format.chunk_bytes))
    joined: defaultdict[str, contents.Slices] = defaultdict(list)
    for name, parts in slices.items():
        joined[name.partition(".")[0]] += parts
    stored = [
        Stored(place, box if tensor.axes is None else None, tuple(joined[str(place)])) for place, tensor, box in wanted
    ]
    records = own_records(own)
    beside = [(records[name], joined[f"own{number}"]) for number, name in enumerate(sorted(records))]
    shared = [each for each in stored if table[each.place].first == world]
    rest = [each for each in stored if table[each.place].first != world]
    return contents.make_share(rest, beside), contents.make_share(shared)


def own_records(own: State) -> dict[str, OwnTensor]:
    """Return the records of tensors that a rank has under names of its own."""
    return {
        name: OwnTensor(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in own.items()
    }


def plan(state: State, table: Sequence[TableTensor], rank: int, world: int) -> Iterator[tuple[int, TableTensor, Box]]:
    """Yield the shards that this rank stores: their places in the table, tensors and regions. Raises StateError."""
    regions: dict[tuple[object, ...], Box | None] = {}
    for place, tensor in enumerate(table):
        if (value := state.get(tensor.name)) is None:
            continue
        if tensor.axes is None:
            box = _irregular_box(value)
        else:
            key = tensor.shape, tensor.axes, tensor.first
            if key not in regions:
                number = world if rank == 0 and tensor.first == world else rank
                regions[key] = cuts.region(tensor.shape, tensor.axes, tensor.first, number)
            box = regions[key]
        if box is None or not all(box.sizes):
            continue
        if tuple(_local(value).shape) != box.sizes:
            raise StateError(f"a shard of {tensor.name} has another shape than its layout has")
        yield place, tensor, box


def _irregular_box(tensor: torch.Tensor) -> Box | None:
    """Return the region of this rank, if it is the first of the ranks that have copies of it."""
    if not isinstance(tensor, DTensor) or (coordinate := tensor.device_mesh.get_coordinate()) is None:
        return None
    if any(isinstance(each, Replicate) and at for each, at in zip(tensor.placements, coordinate, strict=True)):
        return None
    sizes, offsets = sharded.local_box(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(offsets, sizes)


def _pieces(
    state: State, wanted: Sequence[tuple[int, TableTensor, Box]], own: State, grid: int
) -> Iterator[tuple[str, memoryview]]:
    for place, tensor, box in wanted:
        value = _local(state[tensor.name])
        offset = flat_offset(tensor.shape, box) * value.element_size()
        for cut, piece in enumerate(_on_grid(tensor_bytes.readable(value), offset, grid)):
            yield f"{place}.{cut}", piece
    for number, name in enumerate(sorted(own)):
        yield f"own{number}", tensor_bytes.readable(own[name])


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return sharded.local_part(tensor) if isinstance(tensor, DTensor) else tensor


def flat_offset(shape: Sequence[int], box: Box) -> int:
    """Return the offset of a region's first element in the whole tensor's row-major order."""
    return sum(offset * math.prod(shape[d + 1 :]) for d, offset in enumerate(box.offsets))


def _on_grid(data: memoryview, offset: int, grid: int) -> Iterator[memoryview]:
    """Cut on a grid over the whole tensor, so that another number of ranks gives mostly the same chunks."""
    start = 0
    while start < data.nbytes:
        end = min(data.nbytes, start + grid - (offset + start) % grid)
        yield data[start:end]
        start = end
