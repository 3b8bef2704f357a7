"""A stored tensor's bytes in row-major order, for any boxes and any division into parts."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records.checkpoint import Shard, Tensor
from m5ws.records.tree import Slice
from m5ws.repository.repository import Repository
from m5ws.repository.tensors import Box, Layout, PartCache, TensorReader, layout
from tests.support.stores.memory_store import MemoryStore


def stored(repo: Repository, data: bytes, cuts: list[int]) -> tuple[Slice, ...]:
    """Store bytes in parts that end at `cuts`, in one pack, or as separate objects if they are long."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pack = repo.objects.put(b"before" + data)
    found = []
    for start, end in itertools.pairwise(edges):
        piece = data[start:end]
        own = repo.objects.put(piece) if len(piece) > 40 else None
        place = 0 if own else len(b"before") + start
        digest = repo.objects.digest(piece)
        found.append(Slice(object=own or pack, offset=place, size_bytes=len(piece), digest=digest))
    return tuple(found)


def boxes(shape: tuple[int, ...], cuts: list[list[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return offsets and sizes of the boxes between cuts in each dimension."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for size, places in zip(shape, cuts, strict=True):
        edges = sorted({0, size, *(place for place in places if place < size)})
        found = [
            ((*offsets, start), (*sizes, end - start))
            for offsets, sizes in found
            for start, end in itertools.pairwise(edges)
        ]
    return found


@given(
    shape=st.lists(st.integers(1, 6), max_size=4).map(tuple),
    dtype=st.sampled_from([("uint8", np.uint8), ("int16", np.int16), ("float64", np.float64)]),
    data=st.data(),
)
def test_any_boxes_and_parts_give_the_bytes_of_the_whole(
    shape: tuple[int, ...], dtype: tuple[str, type], data: st.DataObject
) -> None:
    repo = Repository.create(MemoryStore())
    whole: np.ndarray = np.arange(math.prod(shape)).astype(dtype[1]).reshape(shape)
    cuts = [data.draw(st.lists(st.integers(1, 6), max_size=2)) for _ in shape]
    shards = []
    for offsets, sizes in boxes(shape, cuts):
        piece = whole[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))].tobytes()
        parts = stored(repo, piece, data.draw(st.lists(st.integers(1, 200), max_size=4)))
        shards.append(Shard(offsets=offsets, sizes=sizes, parts=parts))
    record = Tensor(name="t", dtype=dtype[0], shape=shape, shards=tuple(shards))
    reader = TensorReader(PartCache(repo.objects, held_bytes=64), layout(record))
    expected = whole.tobytes()
    windows = reader.windows()
    assert b"".join(reader.read(start, end) for start, end in windows) == expected
    assert all(start % whole.itemsize == 0 for start, _ in windows)
    start = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(start, len(expected)))
    assert reader.read(start, end) == expected[start:end]


def test_a_tensor_inside_a_flat_buffer_is_cut_out_of_the_shared_parts(repo: Repository) -> None:
    flat = np.arange(40, dtype=np.float32)
    parts = stored(repo, flat.tobytes(), [50, 100])
    spans = (
        Box(offsets=(0,), sizes=(5,), parts=parts, skip_bytes=4 * 30),
        Box(offsets=(5,), sizes=(7,), parts=parts, skip_bytes=4 * 2),
    )
    reader = TensorReader(
        PartCache(repo.objects), Layout(name="t", dtype="float32", shape=(3, 4), grid=(12,), boxes=spans)
    )
    expected = np.concatenate([flat[30:35], flat[2:9]]).tobytes()
    assert b"".join(reader.read(*window) for window in reader.windows()) == expected
    assert reader.read(16, 24) == expected[16:24]


CUTS = st.lists(st.integers(1, 2), max_size=2)
BOXES = st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(0, 3), st.integers(0, 3)))


@given(CUTS, CUTS, st.lists(st.tuples(st.integers(0, 8), BOXES), max_size=2))
def test_only_shards_with_each_element_once_are_a_layout(rows: list[int], columns: list[int], changes: Any) -> None:
    repo = Repository.create(MemoryStore())
    held = boxes((3, 3), [rows, columns])
    for at, box in changes:
        held[at % len(held)] = box
    elements = [
        element
        for offsets, sizes in held
        for element in itertools.product(*(range(at, at + size) for at, size in zip(offsets, sizes, strict=True)))
    ]
    shards = [Shard(offsets=at, sizes=sizes, parts=stored(repo, bytes(math.prod(sizes)), [])) for at, sizes in held]
    record = Tensor(name="t", dtype="uint8", shape=(3, 3), shards=tuple(shards))
    if sorted(elements) == list(itertools.product(range(3), repeat=2)):
        assert layout(record).size_bytes == 9
    else:
        with pytest.raises(CorruptObject):
            layout(record)


def test_shards_that_do_not_fill_their_tensor_are_an_error(repo: Repository) -> None:
    shard = Shard(offsets=(0,), sizes=(4,), parts=stored(repo, bytes(16), []))
    with pytest.raises(CorruptObject, match=r"the shards of tensor t do not fill"):
        layout(Tensor(name="t", dtype="float32", shape=(5,), shards=(shard,)))
    for wrong in (Shard(offsets=(3,), sizes=(4,), parts=shard.parts), Shard(offsets=(), sizes=(), parts=shard.parts)):
        with pytest.raises(CorruptObject, match="outside"):
            layout(Tensor(name="t", dtype="float32", shape=(4,), shards=(wrong,)))
    half = Box(offsets=(0,), sizes=(4,), parts=shard.parts)
    reader = TensorReader(
        PartCache(repo.objects), Layout(name="t", dtype="float32", shape=(8,), grid=(8,), boxes=(half,))
    )
    with pytest.raises(CorruptObject, match="fill"):
        reader.read(0, 32)
    with pytest.raises(UnknownSchema, match="'float3'"):
        layout(Tensor(name="t", dtype="float3", shape=(1,), shards=()))
