"""Fingerprints and tables of many ranks, made as by a tree, against a reference that has all ranks at once."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.records.checkpoint import Axis
from m5ws.repository import cuts
from m5ws.training.backends import placement
from m5ws.training.backends.base import COPIES, Cut
from m5ws.training.backends.placement import Placed
from m5ws.training.fingerprint import fingerprint, merging
from m5ws.training.runtime import classes
from m5ws.training.state.plain_state import StateError

SHAPE = (6, 5)
Ranks = list[dict[str, Cut | None]]


def mesh(cut: Cut) -> list[int]:
    spans = [[place * distance for place in range(pieces)] for _, pieces, distance in cut.axes]
    return [cut.first + sum(places) for places in itertools.product(*spans)]


@st.composite
def worlds(draw: st.DrawFn, *, irregular: bool = True) -> Ranks:
    """The cuts of tensors on each rank: whole on some ranks, and sharded on meshes of one or more copies."""
    world = draw(st.integers(1, 12))
    ranks: Ranks = [{} for _ in range(world)]
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["whole", "mesh", "meshes", *(["irregular"] if irregular else [])]))
        if kind == "whole":
            for rank in draw(st.sets(st.integers(0, world - 1), min_size=1)):
                ranks[rank][f"t{number}"] = merging.WHOLE
            continue
        outer = draw(st.integers(1, world))
        inner = draw(st.integers(1, world // outer))
        axes = [(draw(st.sampled_from([0, 1, COPIES])), outer, inner), (draw(st.sampled_from([0, 1])), inner, 1)]
        size = outer * inner
        count = draw(st.integers(1, world // size)) if kind == "meshes" else 1
        for first in range(0, count * size, size):
            cut = Cut(first, tuple(axes))
            for rank in mesh(cut):
                ranks[rank][f"t{number}"] = None if kind == "irregular" and draw(st.booleans()) else cut
    return ranks


def classes_of(ranks: Ranks, value: Any = lambda cut: cut) -> list[Any]:
    """Return the classes of ranks as rank 0 gets them from the tree."""
    joined: dict[bytes, Any] = {}
    for number, layouts in enumerate(ranks):
        own = {name: value(cut) for name, cut in layouts.items()}
        joined = classes.join(joined, {repr(sorted(own.items())).encode(): ((number,), own)})
    return sorted(joined.values(), key=lambda each: each[0])


def region(cut: Cut | None, rank: int) -> str:
    """Return the region of a rank as `fingerprint.local` names it: ranks with copies have the same."""
    if cut == merging.WHOLE:
        return "all"
    if cut is None:
        return "irregular"
    places = []
    distance = rank - cut.first
    for dimension, _, step in cut.axes:
        places.append((dimension, distance // step if step else 0))
        distance %= step or 1
    return str([place for place in places if place[0] != COPIES])


@settings(max_examples=150, deadline=None)
@given(worlds(), st.data())
def test_added_vectors_give_the_fingerprints_of_all_ranks_compared_at_once(ranks: Ranks, data: st.DataObject) -> None:
    sums = [
        {name: {region(cut, rank): hash((name, region(cut, rank))) % 2**64} for name, cut in layouts.items()}
        for rank, layouts in enumerate(ranks)
    ]
    for _ in range(data.draw(st.integers(0, 2))):
        held = data.draw(st.sampled_from([each for each in sums if each]))
        name = data.draw(st.sampled_from(sorted(held)))
        ((where, value),) = held[name].items()
        held[name] = {where: (value + 1) % 2**64}
    expected = fingerprint.merge(sums)
    rules = merging.arrange(classes_of(ranks))
    vectors = [merging.contribute(own, ranks[rank], rules, rank) for rank, own in enumerate(sums)]
    added, differences = (
        [sum(column) % 2**64 for column in zip(*(vector[side] for vector in vectors), strict=True)] for side in (0, 1)
    )
    unequal = merging.unequal(rules, differences)
    compared = fingerprint.merge([{name: own[name] for name in unequal if name in own} for own in sums])
    assert merging.texts(rules, added, unequal) | compared == expected
    if len(ranks) > 1:
        # Copies that are equal are never compared rank by rank, so the work of rank 0 does not grow with the ranks.
        alike = [name for name in rules.names if not any(each.startswith(f"{name}@") for each in expected)]
        irregular = {name for layouts in ranks for name, cut in layouts.items() if cut is None}
        assert not set(unequal) & set(alike) - irregular - _odd(rules)


def _odd(rules: merging.Rules) -> set[str]:
    """Names whose ranks contradict their formula."""
    return {name for name, kind in zip(rules.names, rules.of, strict=True) if not rules.kinds[kind].regular}


def placed(cut: Cut | None) -> Placed:
    return Placed(
        "float32", SHAPE, 4, None if cut == merging.WHOLE else ("S(0) of 2",), None if cut == merging.WHOLE else cut
    )


@settings(max_examples=150, deadline=None)
@given(worlds(irregular=False))
def test_a_table_gives_each_element_one_rank_that_holds_it(ranks: Ranks) -> None:
    table = placement.arrange(classes_of(ranks, placed))
    assert [tensor.name for tensor in table] == sorted({name for layouts in ranks for name in layouts})
    for tensor in table:
        assert tensor.axes is not None
        owned: list[tuple[int, ...]] = []
        for number in range(len(ranks) + 1):
            # The last number is rank 0's, for whole tensors that all ranks need.
            rank = number % len(ranks)
            box = cuts.region(tensor.shape, tensor.axes, tensor.first, number)
            if box is None or not all(box.sizes):
                continue
            cut = ranks[rank][tensor.name]
            assert cut is not None
            own = [Axis(*axis) for axis in cut.axes if axis[0] != COPIES]
            firsts = list(mesh(Cut(cut.first, tuple(a for a in cut.axes if a[0] == COPIES))))
            mine = [cuts.region(SHAPE, own, first, rank) for first in firsts]
            assert cut == merging.WHOLE or box in mine
            spans = (range(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))
            owned += itertools.product(*spans)
        assert len(owned) == len(set(owned)) == math.prod(SHAPE)


def test_a_rank_without_its_part_of_a_tensor_is_named() -> None:
    cut = Cut(0, ((0, 3, 1),))
    ranks: Ranks = [{"t": cut}, {}, {"t": cut}]
    with pytest.raises(StateError, match="rank 1 lacks its part of t"):
        placement.arrange(classes_of(ranks, placed))


def test_a_tensor_with_two_shardings_is_refused() -> None:
    cut = Cut(0, ((0, 2, 1),))
    shardings = (None, ("S(0) of 2",), ("S(1) of 2",), ("S(0) of 3",))
    for one, other in itertools.product(shardings, repeat=2):
        held = [Placed("float32", SHAPE, 4, each, None if each is None else cut) for each in (one, other)]
        classes = [((0,), {"t": held[0]}), ((1,), {"t": held[1]})]
        if one == other:
            assert [tensor.name for tensor in placement.arrange(classes)] == ["t"]
            continue
        with pytest.raises(StateError, match="t is sharded differently on another rank"):
            placement.arrange(classes)


def test_large_copies_are_dealt_to_all_ranks_and_small_copies_to_few() -> None:
    large = Placed("float32", (2**24,), 4, sharding=None, cut=None)
    small = Placed("float32", (), 4, sharding=None, cut=None)
    described = {f"large.{number}": large for number in range(8)} | {f"small.{number}": small for number in range(99)}
    table = placement.arrange([(tuple(range(4)), described)])
    assert [tensor.first for tensor in table if tensor.name.startswith("large")] == [4, 4, 1, 1, 2, 2, 3, 3]
    assert len({tensor.first for tensor in table if tensor.name.startswith("small")}) == 1
