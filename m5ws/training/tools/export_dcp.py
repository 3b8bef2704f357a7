"""Tensors as a checkpoint that `torch.distributed.checkpoint.FileSystemReader` reads, written one block at a time.

DCP's own writer holds every tensor of a file in memory until the file is done. What is written here is the same:
blocks by `torch.save` one after the other, and a `.metadata` that says where each is.
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
from m5ws.repository.tensors import Layout, Parts, Reader
from m5ws.training.compat import dcp_files, facts

_BLOCK_BYTES = 256 * 2**20
_FILE = "__0_0.distcp"


def write(layouts: Sequence[Layout], parts: Parts, directory: Path, progress: Progress | None) -> None:
    """Write tensors into an empty directory. Raises NotFound, CorruptObject, UnsupportedVersion."""
    facts.require(dcp_files.WRITTEN)
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, dcp_files.Place] = {}
    done, total = 0, sum(found.size_bytes for found in layouts)
    with open(directory / _FILE, "wb") as stream:
        for found in layouts:
            reader, chunks = Reader(parts, found), []
            for chunk in _blocks(found):
                begin = stream.tell()
                torch.save(_block(reader, chunk), stream)
                index = MetadataIndex(found.name, chunk.offsets)
                places[index] = _FILE, begin, stream.tell() - begin
                chunks.append(chunk)
                done += math.prod(chunk.sizes) * found.item_bytes
                if progress:
                    progress("writing tensors", done, total)
            kind = TensorProperties(dtype=getattr(torch, found.dtype))
            tensors[found.name] = TensorStorageMetadata(kind, torch.Size(found.shape), chunks)
    dcp_files.write_metadata(tensors, places, directory)


def _blocks(found: Layout) -> Iterator[ChunkStorageMetadata]:
    """Yield boxes of whole rows, of _BLOCK_BYTES at most unless one row is larger.

    A tensor without dimensions, or without elements, is one.
    """
    rest = found.shape[1:]
    row_bytes = math.prod(rest) * found.item_bytes
    if not found.shape or not found.elements:
        yield ChunkStorageMetadata(torch.Size([0] * len(found.shape)), torch.Size(found.shape))
        return
    step = max(1, _BLOCK_BYTES // row_bytes)
    for first in range(0, found.shape[0], step):
        count = min(step, found.shape[0] - first)
        yield ChunkStorageMetadata(torch.Size([first, *[0] * len(rest)]), torch.Size([count, *rest]))


def _block(reader: Reader, chunk: ChunkStorageMetadata) -> torch.Tensor:
    found = reader.layout
    kind: torch.dtype = getattr(torch, found.dtype)
    if not found.elements:
        return torch.empty(found.shape, dtype=kind)
    row_bytes = found.size_bytes // found.shape[0] if found.shape else found.size_bytes
    first = chunk.offsets[0] if found.shape else 0
    size = math.prod(chunk.sizes) * found.item_bytes
    data = reader.read(first * row_bytes, first * row_bytes + size)
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).view(chunk.sizes)
