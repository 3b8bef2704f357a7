"""Contents in parts: formulas of shardings, slices in columns and shares of ranks, each against a plain reference."""

import itertools
import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Axis, Box, Content, Kind, OwnTensor, Part, Row, Share, Table
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository import contents, cuts
from m5ws.repository.contents import PartList, Parts, Stored, TableTensor
from m5ws.repository.objects import Objects
from m5ws.training.runtime import collectives
from tests.support.stores.memory_store import MemoryStore


def objects() -> Objects:
    return Objects(MemoryStore(), Format())


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Axis, ...], int]:
    """A shape, axes that cut it one after another, and the first rank; neighbours of the inner axis are neighbours."""
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    pieces = draw(st.lists(st.integers(1, 4), max_size=3))
    distances = [math.prod(pieces[at + 1 :]) for at in range(len(pieces))]
    order = draw(st.permutations(range(len(pieces))))
    axes = tuple(Axis(draw(st.integers(0, len(shape) - 1)), pieces[at], distances[at]) for at in order)
    return shape, axes, draw(st.integers(0, 3))


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))))


@given(cut_tensors(), st.data())
def test_a_formula_gives_each_element_to_one_rank_and_finds_the_ranks_of_a_region(
    tensor: tuple[tuple[int, ...], tuple[Axis, ...], int], data: st.DataObject
) -> None:
    shape, axes, first = tensor
    world = first + math.prod(axis.pieces for axis in axes) + 2
    regions = {rank: box for rank in range(world) if (box := cuts.region(shape, axes, first, rank)) is not None}
    assert sorted(regions) == list(range(first, world - 2))
    owned = [cell for box in regions.values() for cell in cells(box)]
    assert len(owned) == len(set(owned)) == math.prod(shape)
    assert cuts.count(shape, axes) == sum(1 for box in regions.values() if all(box.sizes))
    if math.prod(shape):
        offsets = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
        sizes = tuple(data.draw(st.integers(1, size - at)) for size, at in zip(shape, offsets, strict=True))
        wanted = Box(offsets, sizes)
        overlapping = [rank for rank, box in regions.items() if cells(box) & cells(wanted)]
        assert sorted(cuts.ranks(shape, axes, first, wanted)) == overlapping
        assert [rank for rank, box in regions.items() if cuts.overlap(box, wanted)] == overlapping


NAMES = st.lists(st.text("abμ.", max_size=6), unique=True, max_size=12)


@given(NAMES, st.randoms())
def test_a_table_has_the_tensors_that_were_put_into_it(names: list[str], draw: random.Random) -> None:
    held = objects()
    tensors = [
        TableTensor(name, draw.choice(["float32", "int8"]), (draw.randrange(3),), draw.choice([(), None]), 2)
        for name in sorted(names)
    ]
    content = Content(format="dcp/1", world=2, tensors=held.put_record(contents.make_table(tensors)))
    assert contents.load_table(held, content) == tensors


FORMULAS = st.lists(st.builds(Axis, st.just(0), st.integers(2, 4), st.integers(1, 6)), max_size=3)


@given(FORMULAS, st.integers(0, 9), st.integers(1, 30))
def test_a_formula_with_regions_for_absent_ranks_is_refused(axes: list[Axis], first: int, world: int) -> None:
    held = objects()
    row = TableTensor("t", "int8", (7,), tuple(axes), first)
    content = Content(format="dcp/1", world=world, tensors=held.put_record(contents.make_table([row])))
    regions = [
        first + sum(place * axis.distance for place, axis in zip(places, axes, strict=True))
        for places in itertools.product(*(range(axis.pieces) for axis in axes))
    ]
    # Without a cut, rank 0 may have stored the tensor for all ranks, in the share after the last rank's.
    ranks = world if axes else world + 1
    # Each region has a rank of its own, from the first on.
    if max(regions) < ranks and first + len(regions) <= ranks:
        assert contents.load_table(held, content) == [row]
    else:
        with pytest.raises(CorruptObject, match="invalid row"):
            contents.load_table(held, content)


ONE = (Kind("int8", (4,)),)
TABLES: dict[str, Table] = {
    "a name twice": Table(kinds=ONE, rows=(Row(0, "a", 0), Row(1, "", 0))),
    "names in another order": Table(kinds=ONE, rows=(Row(0, "b", 0), Row(0, "a", 0))),
    "a beginning that no name has": Table(kinds=ONE, rows=(Row(0, "a", 0), Row(2, "b", 0))),
    "a kind that is absent": Table(kinds=ONE, rows=(Row(0, "a", 1),)),
    "a name of a megabyte": Table(kinds=ONE, rows=(Row(0, "n" * 2**20, 0),)),
    "names that grow": Table(kinds=ONE, rows=tuple(Row(900 * at, "n" * 900, 0) for at in range(9))),
    "a dimension that is absent": Table(kinds=(Kind("int8", (4,), (Axis(1, 2, 1),)),), rows=(Row(0, "a", 0),)),
    "more regions than memory": Table(kinds=(Kind("int8", (2**31,), (Axis(0, 2**31, 1),)),), rows=(Row(0, "a", 0),)),
    "an axis of one piece": Table(kinds=(Kind("int8", (4,), (Axis(0, 1, 1),) * 5000),), rows=(Row(0, "a", 0),)),
    "an axis of one rank": Table(kinds=(Kind("int8", (4,), (Axis(0, 4, 0),)),), rows=(Row(0, "a", 0),)),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_a_table_that_contradicts_itself_is_refused(table: Table) -> None:
    held = objects()
    with pytest.raises(CorruptObject):
        contents.load_table(held, Content(format="dcp/1", world=8, tensors=held.put_record(table)))


@st.composite
def slices(draw: st.DrawFn) -> list[Slice]:
    """Slices as `write_parts` returns them, objects and packs in turn, and others with gaps."""
    made: list[Slice] = []
    for number in range(draw(st.integers(0, 5))):
        name, end = f"{draw(st.integers(0, 3)):064x}", draw(st.sampled_from([0, 0, 7]))
        if draw(st.booleans()):
            made.append(Slice(object=name, offset=0, size_bytes=number, digest=name))
        else:
            for part in range(draw(st.integers(1, 3))):
                size = draw(st.integers(1, 300))
                made.append(Slice(object=name, offset=end, size_bytes=size, digest=f"{number:063x}{part}"))
                end += size + draw(st.sampled_from([0, 0, 1]))
    return draw(st.permutations(made)) if draw(st.booleans()) else made


@given(st.lists(slices(), max_size=4), slices())
def test_a_share_has_the_slices_that_were_put_into_it(stored: list[list[Slice]], own: list[Slice]) -> None:
    table = [TableTensor(f"t{place}", "int8", (4,), None) for place in range(len(stored))]
    boxes = [Box((place,), (1,)) for place in range(len(stored))]
    made = [Stored(place, boxes[place], tuple(parts)) for place, parts in enumerate(stored)]
    share = contents.make_share(made, [(OwnTensor("own@3", "int8", (2,)), own)])
    share = codec.decode(codec.encode(Part(first=3, shares=(share,))), Part).shares[0]
    found = [(tensor.name, shard.offsets, list(shard.parts)) for tensor, shard in contents.shards(share, 3, table)]
    expected = [(f"t{place}", (place,), parts) for place, parts in enumerate(stored)]
    assert found == [*expected, ("own@3", (0,), own)]
    assert list(contents.slices(share)) == [part for parts in (*stored, own) for part in parts]


def padded(rank: int, size_bytes: int) -> Share:
    """Return a share of about this size that differs from rank to rank."""
    blob = Slice(object=f"{rank:064x}", offset=0, size_bytes=1, digest=f"{rank:064x}")
    return contents.make_share((), blobs={f"{rank}-{'x' * size_bytes}": blob})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=70), st.integers(1, 120))
def test_parts_of_the_tree_have_each_rank_once_and_a_bounded_size(sizes: list[int], limit_kib: int) -> None:
    held, world = objects(), len(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "PART_BYTES", limit_kib * 2**10)

        def joined(rank: int) -> PartList:
            """Join the lists of a rank and of all below it, as `collectives.reduce` does."""
            made = contents.one_share(rank, padded(rank, sizes[rank] * 2**10))
            for others, _ in collectives.levels(rank, world):
                for other in others:
                    made = made.joined(joined(other), held.put)
            return made

        content = Content(format="dcp/1", world=world, parts=joined(0).all(held.put))
    parts = Parts(held, content)
    order = random.Random(1).sample(range(world), world)
    assert [list(parts.share(rank).blobs) for rank in order] == [list(padded(r, sizes[r] * 2**10).blobs) for r in order]
    assert [rank for rank, _ in parts.all()] == list(range(world))
    for each in content.parts:
        stored = held.get(each.part)
        alone = len(codec.decode(stored, Part).shares) == 1
        assert alone or len(stored) <= limit_kib * 2**10 + 100


LIES: dict[str, Callable[[Share], Share]] = {
    "more sizes than slices": lambda share: changed(share, sizes=(1, 1, 1)),
    "an object that is absent": lambda share: changed(share, steps=(0, 5)),
    "an object before the first": lambda share: changed(share, steps=(-1, 1)),
    "half of a digest": lambda share: changed(share, digests=share.locations.digests[:40]),
    "half of an object": lambda share: changed(share, objects=share.locations.objects[:-5]),
    "a tensor beyond the table": lambda share: msgspec.structs.replace(share, rows=(0, 9)),
    "more counts than rows": lambda share: msgspec.structs.replace(share, counts=(1, 1, 1)),
    "more slices than it has": lambda share: msgspec.structs.replace(share, counts=(1, 2)),
    "no box": lambda share: msgspec.structs.replace(share, boxes=()),
}


def changed(share: Share, **fields: object) -> Share:
    return msgspec.structs.replace(share, locations=msgspec.structs.replace(share.locations, **fields))


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_share_that_contradicts_itself_is_refused(lie: Callable[[Share], Share]) -> None:
    table = [TableTensor("a", "int8", (4,), ()), TableTensor("b", "int8", (4,), None)]
    pack = [Slice(object="1" * 64, offset=at, size_bytes=4, digest=f"{at:064x}") for at in (0, 4)]
    share = contents.make_share([Stored(0, None, (pack[0],)), Stored(1, Box((0,), (4,)), (pack[1],))])
    assert len(list(contents.shards(share, 0, table))) == 2
    with pytest.raises(CorruptObject):
        list(contents.shards(lie(share), 0, table))


def test_parts_that_lack_a_rank_are_refused() -> None:
    held = objects()
    part = contents.one_share(0, Share()).all(held.put)
    for world, listed in ((2, part), (1, (msgspec.structs.replace(part[0], first=1),)), (2, (*part, *part))):
        parts = Parts(held, Content(format="dcp/1", world=world, parts=listed))
        with pytest.raises(CorruptObject):
            list(parts.all())
    with pytest.raises(CorruptObject, match="no share of rank 1"):
        Parts(held, Content(format="dcp/1", world=2, parts=part)).share(1)
