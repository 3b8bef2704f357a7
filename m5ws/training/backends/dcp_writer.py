"""DCP's storage writer onto a repository: tensors as raw row-major bytes in content-addressed objects.

DCP plans the items of each rank. Tensors are cut on a grid over the whole tensor, so that unchanged bytes are objects
that the repository already has.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from m5ws.records.checkpoint import Shard
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.records.tree import Slice
from m5ws.repository.buffers import write_parts
from m5ws.repository.objects import Objects
from m5ws.training.state import tensor_bytes


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
