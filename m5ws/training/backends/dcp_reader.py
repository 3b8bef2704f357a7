"""DCP's storage reader from a repository: a `Content`, whose tensors are read into any layout.

Nothing is unpickled: DCP's metadata is rebuilt from the `Content`, which has tensors alone.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Content
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects, Reading, into, read_parts
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import tensor_bytes
from m5ws.training.state.plain_state import RestoreError

_SCRATCH_BYTES = 512 * 2**20
"""Limit of the memory for rows that cannot be read directly into their tensor."""


class RepositoryReader(StorageReader):
    """Reads a `Content`; every byte is verified before it reaches a tensor."""

    def __init__(self, objects: Objects, content: Content) -> None:
        self._objects = objects
        self._content = content
        self._dtypes = {tensor.name: tensor.dtype for tensor in content.tensors}
        self._shards = {
            MetadataIndex(tensor.name, shard.offsets): shard for tensor in content.tensors for shard in tensor.shards
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({tensor.name: _tensor_metadata(tensor) for tensor in self._content.tensors})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        batch, held = list[_Reading](), 0
        for item in plan.items:
            if (reading := self._begun(item, planner)) is not None:
                batch.append(reading)
                held += 0 if reading.scratch is None else reading.scratch.nbytes
                if held > _SCRATCH_BYTES:
                    self._finish(batch, planner)
                    batch, held = [], 0
        self._finish(batch, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _begun(self, item: ReadItem, planner: LoadPlanner) -> "_Reading | None":
        """Return the reading of an item: the parts that hold its rows, directly into its tensor where possible."""
        target = planner.resolve_tensor(item).detach()
        if not target.numel():
            return None
        name, shard = item.storage_index.fqn, self._shards[item.storage_index]
        parts, start, count = self._rows(item, target)
        size_bytes = sum(part.size_bytes for part in parts)
        whole = tuple(item.lengths) == (count, *shard.sizes[1:]) if shard.sizes else True
        memory = tensor_bytes.writable(target) if whole and size_bytes == target.nbytes else None
        if memory is not None:
            return _Reading(item, target, into(parts, memory, name))
        scratch = torch.empty(size_bytes, dtype=torch.uint8)
        shape = (count, *shard.sizes[1:]) if shard.sizes else ()
        return _Reading(item, target, into(parts, scratch.numpy().data, name), scratch, start, shape)

    def _rows(self, item: ReadItem, target: torch.Tensor) -> tuple[list[Slice], int, int]:
        """Return the parts that hold an item's rows, the byte at which the first row begins, and the number of rows."""
        name, shard = item.storage_index.fqn, self._shards[item.storage_index]
        if str(target.dtype) != f"torch.{self._dtypes[name]}":
            raise RestoreError(f"{name} is stored as {self._dtypes[name]} and is {target.dtype} now")
        row_bytes = math.prod(shard.sizes[1:]) * target.dtype.itemsize
        first, count = (item.storage_offsets[0], item.lengths[0]) if shard.sizes else (0, 1)
        parts, base = _covering(shard.parts, first * row_bytes, (first + count) * row_bytes)
        start = first * row_bytes - base
        if sum(part.size_bytes for part in parts) < start + count * row_bytes:
            raise CorruptObject(f"the parts of {name} are shorter than its shape {shard.sizes}")
        return parts, start, count

    def _finish(self, batch: list["_Reading"], planner: LoadPlanner) -> None:
        """Read the parts of a batch, all at once, and hand the tensors over."""
        read_parts(self._objects, [part for reading in batch for part in reading.parts])
        for reading in batch:
            reading.finish()
            planner.commit_tensor(reading.item, reading.target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class PlanReader(RepositoryReader):
    """Checks for each item that its bytes exist, without reading them."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target = planner.resolve_tensor(item)
            if target.numel():
                self._rows(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@dataclass(frozen=True)
class _Reading:
    """The reading of an item into `target`, or into `scratch`: from byte `start` on, whole rows of its shard."""

    item: ReadItem
    target: torch.Tensor
    parts: list[Reading]
    scratch: torch.Tensor | None = None
    start: int = 0
    shape: tuple[int, ...] = ()

    def finish(self) -> None:
        """Copy the rows in scratch into the target."""
        if self.scratch is None:
            return
        dtype = self.target.dtype
        rows = self.scratch[self.start : self.start + math.prod(self.shape) * dtype.itemsize]
        # Not `.view(dtype)` at once: a part may begin at an offset that the element type does not allow.
        source = (rows.clone() if self.start % dtype.itemsize else rows).view(dtype).view(self.shape)
        offsets = list(self.item.storage_offsets)
        if offsets:
            offsets[0] = 0
        for dimension, (offset, length) in enumerate(zip(offsets, self.item.lengths, strict=True)):
            source = source.narrow(dimension, offset, length)
        tensor_bytes.fill(self.target, source)


def _tensor_metadata(tensor: TensorRecord) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=content_rules.dtype(tensor.name, tensor.dtype)),
        size=torch.Size(tensor.shape),
        chunks=[ChunkStorageMetadata(torch.Size(shard.offsets), torch.Size(shard.sizes)) for shard in tensor.shards],
    )


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
