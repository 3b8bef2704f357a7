"""Tensors as a checkpoint that `torch.distributed.checkpoint.FileSystemReader` reads, written one block at a time.

DCP's own writer holds every tensor of a file in memory until the file is done. This module writes the same format:
blocks by `torch.save` one after the other, and a `.metadata` with the place of each.

https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from m5ws.progress import Progress
from m5ws.repository.tensors import Layout, PartCache, TensorReader
from m5ws.training.compat import dcp_files, facts
from m5ws.training.tools import load_tensors

_BLOCK_BYTES = 256 * 2**20
_FILE = "__0_0.distcp"


def write(layouts: Sequence[Layout], parts: PartCache, directory: Path, progress: Progress | None) -> None:
    """Write tensors into an empty directory. Raises NotFound, CorruptObject, UnsupportedVersion."""
    facts.require(dcp_files.WRITTEN)
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, dcp_files.Place] = {}
    done, total = 0, sum(layout.size_bytes for layout in layouts)
    with open(directory / _FILE, "wb") as stream:
        for layout in layouts:
            reader, chunks = TensorReader(parts, layout), []
            for chunk in _blocks(layout):
                begin = stream.tell()
                torch.save(_block(reader, chunk), stream)
                index = MetadataIndex(layout.name, chunk.offsets)
                places[index] = _FILE, begin, stream.tell() - begin
                chunks.append(chunk)
                done += math.prod(chunk.sizes) * layout.item_bytes
                if progress:
                    progress("writing tensors", done, total)
            kind = TensorProperties(dtype=getattr(torch, layout.dtype))
            tensors[layout.name] = TensorStorageMetadata(kind, torch.Size(layout.shape), chunks)
    dcp_files.write_metadata(tensors, places, directory)


def _blocks(layout: Layout) -> Iterator[ChunkStorageMetadata]:
    """Yield boxes of whole rows, of at most _BLOCK_BYTES unless one row is larger.

    A tensor without dimensions, or without elements, is one box.
    """
    rest = layout.shape[1:]
    row_bytes = math.prod(rest) * layout.item_bytes
    if not layout.shape or not layout.elements:
        yield ChunkStorageMetadata(torch.Size([0] * len(layout.shape)), torch.Size(layout.shape))
        return
    step = max(1, _BLOCK_BYTES // row_bytes)
    for first in range(0, layout.shape[0], step):
        count = min(step, layout.shape[0] - first)
        yield ChunkStorageMetadata(torch.Size([first, *[0] * len(rest)]), torch.Size([count, *rest]))


def _block(reader: TensorReader, chunk: ChunkStorageMetadata) -> torch.Tensor:
    layout = reader.layout
    if not layout.elements:
        return load_tensors.tensor(bytearray(), layout.dtype, layout.shape)
    row_bytes = layout.size_bytes // layout.shape[0] if layout.shape else layout.size_bytes
    first = chunk.offsets[0] if layout.shape else 0
    size = math.prod(chunk.sizes) * layout.item_bytes
    data = reader.read(first * row_bytes, first * row_bytes + size)
    return load_tensors.tensor(data, layout.dtype, chunk.sizes)
