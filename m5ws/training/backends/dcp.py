"""`torch.distributed.checkpoint` onto a repository: tensors as raw row-major bytes in content-addressed objects.

DCP plans who writes what and reshards on load; the bytes, and the metadata that finds them again, are ours.
Nothing is unpickled: DCP's metadata is rebuilt from the `Content`, and byte items that other users of this
writer save are refused unless torch's weights-only unpickler takes them.
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from m5ws.errors import CorruptObject
from m5ws.records.checkpoint import Content, Shard
from m5ws.records.checkpoint import Tensor as TensorRecord
from m5ws.records.tree import Slice
from m5ws.repository.buffers import Reading, into, read_parts, write_parts
from m5ws.repository.objects import Objects
from m5ws.training.compat.tensors import sharded_like
from m5ws.training.runtime import collectives
from m5ws.training.state import content_check as content_rules
from m5ws.training.state import tensor_bytes
from m5ws.training.state.plain_state import RestoreError, StateError

_SCRATCH_BYTES = 512 * 2**20
"""So much memory, at most, holds rows that do not fit where they belong as they are stored."""
Tensors = tuple[TensorRecord, ...]


def save(
    state: dict[str, Any], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> tuple[Tensors, dict[str, Slice]]:
    """Write a flat state of tensors and return, on rank 0, the tensors and byte items of a Content; collective.

    When it returns on any rank, the bytes of all ranks are durable. Raises the first error of any rank, on all.
    """
    writer = RepositoryWriter(objects)
    _save(state, writer, group)
    return writer.tensors, writer.blobs


def load(
    state: dict[str, Any], objects: Objects, content: Content, group: "torch.distributed.ProcessGroup | None"
) -> None:
    """Fill the tensors of a flat state, in place, on whatever layout they have; collective.

    Raises the first error of any rank, on all: NotFound, CorruptObject, RestoreError.
    """
    _load(state, RepositoryReader(objects, content), group)


def _save(state: dict[str, Any], writer: StorageWriter, group: "torch.distributed.ProcessGroup | None") -> None:
    planner = DefaultSavePlanner(flatten_state_dict=False)
    with _QuietAlone():
        try:
            save_state(state, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)
        except CheckpointException as error:
            raise _first(error) from error


def _load(state: dict[str, Any], reader: StorageReader, group: "torch.distributed.ProcessGroup | None") -> None:
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    with _QuietAlone():
        try:
            load_state(state, storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)
        except CheckpointException as error:
            raise _first(error) from error


def rehearse(
    state: dict[str, torch.Tensor], objects: Objects, group: "torch.distributed.ProcessGroup | None"
) -> Tensors:
    """Plan a save of a flat state and a load of it into another, and return the tensors of the Content; collective.

    No byte of a tensor is read, written or copied. Raises what a save or a load would raise.
    """
    writer = _PlanWriter(objects)
    _save(state, writer, group)
    tensors = collectives.broadcast(writer.tensors, group)
    world = collectives.world(group)
    content = Content(format="dcp/1", world=world, tensors=tensors, ranks=(_slice(0),) * world)
    content_rules.check(content)
    _load({name: _shadow(tensor) for name, tensor in state.items()}, _PlanReader(objects, content), group)
    return tensors


def _shadow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same layout, all of whose elements are one in memory."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    empty = torch.empty((), dtype=local.dtype).expand(local.shape)
    return sharded_like(tensor, empty) if isinstance(tensor, DTensor) else empty


def _slice(size_bytes: int) -> Slice:
    return Slice(object="0" * 64, offset=0, size_bytes=size_bytes, digest="0" * 64)


class _QuietAlone(warnings.catch_warnings):
    """Silences DCP's remark that torch.distributed is not in use, which is so on purpose."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def _first(error: CheckpointException) -> BaseException:
    """Return what went wrong on the lowest rank; DCP's own exception is no `Exception` and hides the type."""
    return error.failures[min(error.failures)][0]


class RepositoryWriter(StorageWriter):
    """Writes the planned items; after `finish`, on the coordinator, `tensors` and `blobs` describe them."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.tensors: Tensors = ()
        self.blobs: dict[str, Slice] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.tensors, self.blobs = (), {}

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
            if isinstance(data, io.BytesIO):
                if data.getbuffer().nbytes > self._objects.format.chunk_bytes:
                    raise _too_large(item.index.fqn, data.getbuffer().nbytes, self._objects.format.chunk_bytes)
                yield f"{position}.0", data.getbuffer()
            elif data.numel() and item.tensor_data is not None:
                offset = _flat_offset(item.tensor_data.size, item.tensor_data.chunk) * data.element_size()
                for cut, piece in enumerate(
                    _on_grid(tensor_bytes.readable(data), offset, self._objects.format.chunk_bytes)
                ):
                    yield f"{position}.{cut}", piece

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {result.index: result.storage_data for rank in results for result in rank}
        tensors = []
        for name, item in sorted(metadata.state_dict_metadata.items()):
            if isinstance(item, BytesStorageMetadata):
                (self.blobs[name],) = written[MetadataIndex(name)]
            else:
                tensors.append(_tensor_record(name, item, written))
        self.tensors = tuple(tensors)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class _PlanWriter(RepositoryWriter):
    """Names bytes that are nowhere."""

    def _written(self, plan: SavePlan, planner: SavePlanner) -> Mapping[int, Sequence[Slice]]:
        found = (planner.resolve_data(item) for item in plan.items)
        return {at: (_slice(data.nbytes),) for at, data in enumerate(found) if isinstance(data, torch.Tensor)}


def _too_large(name: str, size_bytes: int, most_bytes: int) -> StateError:
    return StateError(
        f"{name} is {size_bytes} bytes of pickled Python objects, and {most_bytes} can be stored of one such item",
        hint="Hold what is large in it as tensors, which have no limit.",
    )


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
    """Return where a chunk begins in the whole tensor's row-major order."""
    return sum(offset * math.prod(shape[d + 1 :]) for d, offset in enumerate(chunk.offsets))


def _on_grid(data: memoryview, offset: int, grid: int) -> Iterator[memoryview]:
    """Cut where a grid over the whole tensor says, so that another number of ranks gives mostly the same chunks."""
    start = 0
    while start < data.nbytes:
        end = min(data.nbytes, start + grid - (offset + start) % grid)
        yield data[start:end]
        start = end


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
        tensors = {tensor.name: _tensor_metadata(tensor) for tensor in self._content.tensors}
        blobs = {name: BytesStorageMetadata() for name in self._content.blobs}
        return Metadata(state_dict_metadata={**tensors, **blobs})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._safe_bytes(item.storage_index.fqn))
        batch, held = list[_Reading](), 0
        for item in plan.items:
            if item.type == LoadItemType.TENSOR and (reading := self._begun(item, planner)) is not None:
                batch.append(reading)
                held += reading.scratch_bytes
                if held > _SCRATCH_BYTES:
                    self._finish(batch, planner)
                    batch, held = [], 0
        self._finish(batch, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _begun(self, item: ReadItem, planner: LoadPlanner) -> "_Reading | None":
        """Return what reads an item: the parts that hold its rows, straight into its tensor where that can be."""
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
        """Return the parts that hold an item's rows, at which byte of them the first begins, and how many there are."""
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
        """Read what was begun, all at once, and hand it over."""
        read_parts(self._objects, [part for reading in batch for part in reading.parts])
        for reading in batch:
            reading.settle()
            planner.commit_tensor(reading.item, reading.target)

    def _safe_bytes(self, name: str) -> io.BytesIO:
        """Return a byte item that the weights-only unpickler takes. Raises RestoreError."""
        data = self._objects.read(self._content.blobs[name])
        try:
            # A BytesIO holds bytes, which are not looked into: it is as plain as they are.
            with torch.serialization.safe_globals([io.BytesIO]):
                torch.load(io.BytesIO(data), weights_only=True)
        except Exception as error:
            raise RestoreError(f"{name} is a pickle with more than plain data and tensors in it: {error}") from error
        return io.BytesIO(data)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class _PlanReader(RepositoryReader):
    """Finds for each item the bytes that it would read."""

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
    """An item on its way into `target`, or into `scratch`: from byte `start` on, whole rows of its shard."""

    item: ReadItem
    target: torch.Tensor
    parts: list[Reading]
    scratch: torch.Tensor | None = None
    start: int = 0
    shape: tuple[int, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.scratch is None else self.scratch.nbytes

    def settle(self) -> None:
        """Copy what was read into scratch to where it belongs."""
        if self.scratch is None:
            return
        dtype = self.target.dtype
        rows = self.scratch[self.start : self.start + math.prod(self.shape) * dtype.itemsize]
        # Not `.view(dtype)` at once: a part may begin at an offset that the element type cannot.
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
    """Return the parts that hold bytes [start, end) of their join, and where in it the first of them begins."""
    wanted: list[Slice] = []
    position, base = 0, start
    for part in parts:
        if position < end and position + part.size_bytes > start:
            base = position if not wanted else base
            wanted.append(part)
        position += part.size_bytes
    return wanted, base
