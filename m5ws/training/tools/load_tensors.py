"""Stored tensors as torch's, in memory: a state dict. Every byte is verified before it reaches a tensor."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.tensors import Layout, PartCache, TensorReader
from m5ws.training.state.plain_state import tensor_from

StateDict = dict[str, torch.Tensor]


def load(layouts: Sequence[Layout], parts: PartCache) -> StateDict:
    """Return tensors on the CPU by their names. Raises NotFound, CorruptObject."""
    buffers = {layout.name: bytearray(layout.size_bytes) for layout in layouts}
    for _ in bounded_map(_reads(layouts, parts, buffers)):
        pass
    return {each.name: tensor_from(buffers[each.name], each.dtype, each.shape, each.name) for each in layouts}


def _reads(layouts: Sequence[Layout], parts: PartCache, buffers: dict[str, bytearray]) -> Iterator[Job[None]]:
    for layout in layouts:
        reader = TensorReader(parts, layout)
        for start, end in reader.windows():
            # Memory: a window, and the parts that it consists of.
            yield 2 * (end - start), partial(_read, reader, buffers[layout.name], start, end)


def _read(reader: TensorReader, target: bytearray, start: int, end: int) -> None:
    target[start:end] = reader.read(start, end)
