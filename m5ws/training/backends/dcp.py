"""`torch.distributed.checkpoint` onto a repository: tensors as raw row-major bytes in content-addressed objects.

DCP plans the writes and reshards on load. m5ws stores the bytes, and the metadata that locates them. Tensors are cut on
a grid over the whole tensor, so that unchanged bytes are objects that the repository already has.

https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from m5ws.records.checkpoint import Content, Shard
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects, write_parts
from m5ws.training.backends.dcp_reader import PlanReader, RepositoryReader
from m5ws.training.compat.sharded import sharded_like
from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import tensor_bytes

Tensors = tuple[TensorRecord, ...]


def save(state: dict[str, torch.Tensor], objects: Objects, group: Group) -> Tensors:
    """Write a flat state and return, on rank 0, the tensors of a Content; collective.

    When it returns on any rank, the bytes of all ranks are durable. Raises the first error of any rank, on all.
    """
    writer = RepositoryWriter(objects)
    _save(state, writer, group)
    return writer.tensors


def load(state: dict[str, Any], objects: Objects, content: Content, group: Group) -> None:
    """Fill the tensors of a flat state, in place, on whatever layout they have; collective.

    Raises the first error of any rank, on all: NotFound, CorruptObject, RestoreError.
    """
    _load(state, RepositoryReader(objects, content), group)


def _save(state: dict[str, Any], writer: StorageWriter, group: Group) -> None:
    planner = DefaultSavePlanner(flatten_state_dict=False)
    with _own_errors():
        save_state(state, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)


def _load(state: dict[str, Any], reader: StorageReader, group: Group) -> None:
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    with _own_errors():
        load_state(state, storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the error of the lowest failed rank; DCP's own exception is no `Exception` and hides the type.

    Silences DCP's warning that torch.distributed is not in use: with one process, that is intended.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            raise error.failures[min(error.failures)][0] from error


def rehearse(state: dict[str, torch.Tensor], objects: Objects, group: Group) -> Tensors:
    """Plan a save of a flat state and a load of it into another; return the tensors of the Content; collective.

    No byte of a tensor is read, written or copied. DCP plans by layout alone. So of the tensors that have equal layouts
    on every rank, one is planned for all. Raises the errors of a save or a load.
    """
    alike = _alike(state, objects, group)
    planned = {name: state[name] for name in alike if name in state}
    writer = PlanWriter(objects)
    _save(planned, writer, group)
    tensors = collectives.broadcast(writer.tensors, group)
    world = collectives.world(group)
    content = Content(format="dcp/1", world=world, tensors=tensors, ranks=(planned_slice(0),) * world)
    content_rules.check(content)
    _load({name: _shadow(tensor) for name, tensor in planned.items()}, PlanReader(objects, content), group)
    return tuple(msgspec.structs.replace(tensor, name=name) for tensor in tensors for name in alike[tensor.name])


def _alike(state: dict[str, torch.Tensor], objects: Objects, group: Group) -> dict[str, list[str]]:
    """Return the names on all ranks, by the first name whose tensors have the same layouts; collective."""
    texts: dict[tuple[object, ...], str] = {}
    layouts: dict[str, str] = {}
    for name, tensor in state.items():
        layout = _layout(tensor)
        if layout not in texts:
            # The text of a mesh lacks its ranks.
            texts[layout] = f"{layout} {tensor.device_mesh.mesh.tolist() if isinstance(tensor, DTensor) else ''}"
        layouts[name] = texts[layout]
    equal = collectives.equal_on_all(layouts, objects, group)
    ranks = [layouts] if equal else collectives.gather(layouts, group)
    names: dict[tuple[str | None, ...], list[str]] = {}
    for name in sorted(set().union(*ranks)):
        names.setdefault(tuple(rank.get(name) for rank in ranks), []).append(name)
    return {same[0]: same for same in names.values()}


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return all of a tensor that a plan depends on."""
    grid = tensor.layout, tensor.shape, tensor.stride(), tensor.requires_grad
    cut = (tensor.placements, tensor.device_mesh) if isinstance(tensor, DTensor) else ()
    return type(tensor), tensor.dtype, tensor.device.type, *grid, *cut


def _shadow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same layout whose elements share one place in memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    empty = torch.empty((), dtype=local.dtype).expand(local.shape)
    return sharded_like(tensor, empty) if isinstance(tensor, DTensor) else empty


class RepositoryWriter(StorageWriter):
    """Writes the planned items. After `finish`, on the coordinator, `tensors` describes them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.tensors: tuple[TensorRecord, ...] = ()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.tensors = ()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        by_item = self._written(plan, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [
                WriteResult(item.index, sum(part.size_bytes for part in by_item[position]), tuple(by_item[position]))
                for position, item in enumerate(plan.items)
            ]
        )
        return done

    def _written(self, plan: SavePlan, planner: SavePlanner) -> Mapping[int, Sequence[Slice]]:
        """Return the location of each item's bytes, by its position."""
        by_item: dict[int, list[Slice]] = {position: [] for position in range(len(plan.items))}
        for name, slices in write_parts(self._objects, self._pieces(plan, planner)).items():
            by_item[int(name.partition(".")[0])].extend(slices)
        return by_item

    def _pieces(self, plan: SavePlan, planner: SavePlanner) -> Iterator[tuple[str, memoryview]]:
        for position, item in enumerate(plan.items):
            data = planner.resolve_data(item)
            # A state has tensors alone: DCP would pickle any other value.
            assert isinstance(data, torch.Tensor)
            assert item.tensor_data is not None
            offset = _flat_offset(item.tensor_data.size, item.tensor_data.chunk) * data.element_size()
            parts = _on_grid(tensor_bytes.readable(data), offset, self._objects.format.chunk_bytes)
            for cut, piece in enumerate(parts):
                yield f"{position}.{cut}", piece

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {result.index: result.storage_data for rank in results for result in rank}
        items = sorted(metadata.state_dict_metadata.items())
        self.tensors = tuple(
            _tensor_record(name, item, written) for name, item in items if isinstance(item, TensorStorageMetadata)
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class PlanWriter(RepositoryWriter):
    """Describes bytes without writing them."""

    def _written(self, plan: SavePlan, planner: SavePlanner) -> Mapping[int, Sequence[Slice]]:
        items = (planner.resolve_data(item) for item in plan.items)
        return {at: (planned_slice(data.nbytes),) for at, data in enumerate(items) if isinstance(data, torch.Tensor)}


def planned_slice(size_bytes: int) -> Slice:
    """Return a slice of bytes that are not written."""
    return Slice(object="0" * 64, offset=0, size_bytes=size_bytes, digest="0" * 64)


def _tensor_record(
    name: str, item: TensorStorageMetadata, written: dict[MetadataIndex, tuple[Slice, ...]]
) -> TensorRecord:
    shards = {
        tuple(chunk.offsets): Shard(
            offsets=tuple(chunk.offsets), sizes=tuple(chunk.sizes), parts=written[MetadataIndex(name, chunk.offsets)]
        )
        for chunk in item.chunks
        if math.prod(chunk.sizes)
    }
    return TensorRecord(
        name=name,
        dtype=str(item.properties.dtype).removeprefix("torch."),
        shape=tuple(item.size),
        shards=tuple(shards[offsets] for offsets in sorted(shards)),
    )


def _flat_offset(shape: Sequence[int], chunk: ChunkStorageMetadata) -> int:
    """Return the offset of a chunk's first element in the whole tensor's row-major order."""
    return sum(offset * math.prod(shape[d + 1 :]) for d, offset in enumerate(chunk.offsets))


def _on_grid(data: memoryview, offset: int, grid: int) -> Iterator[memoryview]:
    """Cut on a grid over the whole tensor, so that another number of ranks gives mostly the same chunks."""
    start = 0
    while start < data.nbytes:
        end = min(data.nbytes, start + grid - (offset + start) % grid)
        yield data[start:end]
        start = end
