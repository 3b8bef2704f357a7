"""Fingerprints of all ranks together, without a rank that works on the sums of all.

Each rank adds the sums of its own elements to a vector with a place for each tensor, but only the first copy of a
region counts. A second vector shows copies that differ: each copy adds a hash of its region and sum, and the first
subtracts the hash as often as there are copies. So equal copies add up to zero. Only tensors with another result, or
without a formula for their shards, are compared rank by rank.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from m5ws.repository import cuts
from m5ws.training.backends.base import Cut
from m5ws.training.runtime.classes import Class

Layouts = dict[str, Cut | None]
"""By name, the cut of a tensor; WHOLE for a whole tensor, and None for shards without a formula."""
WHOLE = Cut(-1, ())


class Rule(NamedTuple):
    """The ranks of tensors: `holders`, or None for all; the first rank of the first copy; and the number of copies.

    Tensors that are not `regular` are compared rank by rank.
    """

    holders: tuple[int, ...] | None
    first: int = 0
    copies: int = 1
    regular: bool = True


class Rules(NamedTuple):
    """Names of tensors in order, the place of the rule of each, and the rules."""

    names: list[str]
    of: list[int]
    kinds: list[Rule]


def arrange(classes: Sequence[Class[Layouts]]) -> Rules:
    """Return the rules for the tensors of all ranks."""
    held: dict[str, list[tuple[int, Cut | None]]] = {}
    for number, (_, layouts) in enumerate(classes):
        for name, cut in layouts.items():
            held.setdefault(name, []).append((number, cut))
    places: dict[tuple[tuple[int, Cut | None], ...], int] = {}
    names = sorted(held)
    of = [places.setdefault(tuple(held[name]), len(places)) for name in names]
    return Rules(names, of, [_rule(kind, classes) for kind in places])


def _rule(kind: Sequence[tuple[int, Cut | None]], classes: Sequence[Class[Layouts]]) -> Rule:
    ranks = tuple(sorted(rank for number, _ in kind for rank in classes[number][0]))
    holders = None if len(ranks) == sum(len(each) for each, _ in classes) else ranks
    cuts_ = {cut for _, cut in kind}
    alike = {cut.axes if cut is not None and cut != WHOLE else cut for cut in cuts_}
    if None in cuts_ or len(alike) > 1:
        return Rule(holders, regular=False)
    if WHOLE in cuts_:
        return Rule(holders, ranks[0], len(ranks))
    meshes = [cut for cut in cuts_ if cut is not None]
    copies = math.prod(pieces for _, pieces, _ in meshes[0].copies) * len(meshes)
    # A rank that lacks its part, or has a part of two meshes, is found rank by rank.
    is_regular = sorted(rank for cut in meshes for rank in cut.ranks()) == list(ranks)
    return Rule(holders, min(meshes).first, copies, is_regular)


Vectors = tuple[list[int], list[int]]
"""Sums, and differences between copies, both in the order of the names of the rules."""


def contribute(own: Mapping[str, Mapping[str, int]], layouts: Layouts, rules: Rules, rank: int) -> Vectors:
    """Return a rank's vectors of the sums of its own elements, by name and region."""
    sums, differences = [0] * len(rules.names), [0] * len(rules.names)
    primary: dict[tuple[int, Cut], bool] = {}
    for place, (name, kind) in enumerate(zip(rules.names, rules.of, strict=True)):
        cut, rule = layouts.get(name), rules.kinds[kind]
        if cut is None or not rule.regular:
            continue
        if (key := (kind, cut)) not in primary:
            primary[key] = _is_first(cut, rule, rank)
        for region, value in own[name].items():
            weight = 1
            if primary[key]:
                sums[place] += value
                weight = 1 - rule.copies
            if rule.copies > 1:
                differences[place] += weight * _hash(region, value)
    return sums, differences


def _is_first(cut: Cut, rule: Rule, rank: int) -> bool:
    """Return True if a rank has the first copy of its region."""
    if cut == WHOLE:
        return rank == rule.first
    return cut.first == rule.first and cuts.has_region(cut.cuts, cut.first, rank)


def _hash(region: str, value: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{region} {value}".encode(), digest_size=8).digest())


def unequal(rules: Rules, differences: Sequence[int]) -> list[str]:
    """Return the names of tensors that are compared rank by rank."""
    rows = zip(rules.names, rules.of, differences, strict=True)
    return [name for name, kind, difference in rows if difference or not rules.kinds[kind].regular]


def texts(rules: Rules, sums: Sequence[int], left_out: Collection[str]) -> dict[str, str]:
    """Return the fingerprints of tensors by name, from the added sums."""
    holders = [holders_text(rule.holders) for rule in rules.kinds]
    rows = zip(rules.names, rules.of, sums, strict=True)
    return {name: f"{value:016x}{holders[kind]}" for name, kind, value in rows if name not in left_out}


def holders_text(ranks: Sequence[int] | None) -> str:
    """Return "@" and the ranks that hold a tensor, as "@0-3,8"; "" if all do."""
    runs: list[list[int]] = []
    for number in ranks or ():
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    listed = ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
    return f"@{listed}" if runs else ""
