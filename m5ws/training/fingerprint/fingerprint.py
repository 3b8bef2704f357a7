"""Fingerprints: a digest of a tensor's bits that does not depend on its sharding.

    sum over elements of mix(bits, global index), modulo 2^64

Every rank sums over its own elements, and the sums add up. The mix contains the index, so that swapped elements change
the sum. Bits are compared, never values: -0.0 would equal +0.0, and NaN would differ from itself. A fingerprint finds
accidents and drift. It does not protect against forgery (the digests of a checkpoint do).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from m5ws.training.backends.base import Cut, Piece, Span
from m5ws.training.fingerprint import merging, tensor_sums
from m5ws.training.runtime import classes, collectives
from m5ws.training.runtime.collectives import Group

_MODULUS = 1 << 64

Sums = dict[str, dict[str, int]]
"""By name and by region (which elements of the whole tensor), the sum over these elements modulo 2^64."""
_WHOLE = "all"
_SPAN = "span "


class Fingerprints(NamedTuple):
    """Fingerprints by name as `merge` returns them, on rank 0 alone; on all ranks, the names with one for each rank."""

    values: dict[str, str]
    apart: frozenset[str] = frozenset()


def fingerprints(pieces: Iterable[Piece], group: Group) -> Fingerprints:
    """Return every tensor's fingerprint; collective. Memory and work of no rank grow with the number of ranks.

    Tensors whose copies differ are an exception: rank 0 gets the sums of all ranks.
    """
    held = list(pieces)
    own = local(held)
    if group is None:
        return Fingerprints(merge([own]))
    spans = {piece.name: sum(own[piece.name].values()) for piece in held if _is_span(piece)}
    layouts = {piece.name: _cut(piece) for piece in held if not _is_span(piece)}
    rules = classes.decide(layouts, merging.arrange, group)
    vectors = merging.contribute(own, layouts, rules, collectives.rank(group))
    sums_, differences = (collectives.add_up(vector, group) for vector in vectors)
    is_first = collectives.rank(group) == 0
    unequal = set(collectives.broadcast(merging.unequal(rules, differences) if is_first else None, group))
    added = collectives.reduce(spans, _joined, group)
    values: dict[str, str] = {}
    if added is not None:
        values = merging.texts(rules, sums_, unequal) | {name: _text({"": value}) for name, value in added.items()}
    if not unequal:
        return Fingerprints(dict(sorted(values.items())))
    single = [{name: own[name] for name in sorted(unequal) if name in layouts}]
    ranks = collectives.reduce(single, lambda before, after: before + after, group)
    compared = merge(ranks) if ranks is not None else {}
    apart = frozenset(name for name in unequal if name not in compared)
    apart = collectives.broadcast(apart, group)
    return Fingerprints(dict(sorted((values | compared).items())) if is_first else {}, apart)


def _is_span(piece: Piece) -> bool:
    return piece.copy == "only" and isinstance(piece.place, Span)


def _cut(piece: Piece) -> Cut | None:
    return merging.WHOLE if piece.copy == "replica" else piece.cut


def _joined(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    added = dict(before)
    for name, value in after.items():
        added[name] = added.get(name, 0) + value
    return added


def local(pieces: Iterable[Piece]) -> Sums:
    """Return this rank's sums; the region of a whole tensor is "all" with type and shape. One transfer per device."""
    held = list(pieces)
    values = tensor_sums.sums([(piece.tensor, piece.place) for piece in held])
    found: Sums = defaultdict(dict)
    for piece, value in zip(held, values, strict=True):
        found[piece.name][_region(piece)] = value
    return dict(found)


def sums(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the sum over each whole tensor's elements, modulo 2^64; one transfer per device."""
    return tensor_sums.sums([(tensor, Span()) for tensor in tensors])


def _region(piece: Piece) -> str:
    if piece.copy == "replica":
        # Elements of no bits, and zeros of several types, have equal sums.
        return f"{_WHOLE} {piece.tensor.dtype} {tuple(piece.tensor.shape)}"
    if isinstance(piece.place, Span):
        return f"{_SPAN}{piece.place.start}+{piece.tensor.numel()}"
    return f"{piece.place.offsets}+{piece.place.sizes}"


def merge(ranks: list[Sums]) -> dict[str, str]:
    """Return the fingerprints that all ranks' sums, in order of ranks, give together, in order of names.

    A fingerprint is 16 hex digits. If only some ranks hold the tensor, as in a pipeline stage, the ranks follow:
    "0123456789abcdef@2-3"; `bits` returns the digits. A tensor whose copies differ between ranks has one entry per
    rank, "NAME@RANK". A copy that changes, or is missing, on one rank therefore changes the entry of its name.
    """
    if len(ranks) == 1:
        return {name: _text(ranks[0][name]) for name in sorted(ranks[0])}
    merged: dict[str, str] = {}
    for name in sorted(set().union(*ranks)):
        holders = {number: rank[name] for number, rank in enumerate(ranks) if name in rank}
        regions: dict[str, int] = {}
        for held in holders.values():
            regions |= held
        alike = all(held.items() <= regions.items() for held in holders.values())
        if alike and (len(regions) == 1 or not any(region.startswith(_WHOLE) for region in regions)):
            # Spans are ZeRO's: they have no copies, and their ranks depend on the number of ranks alone.
            some = len(holders) < len(ranks) and not any(region.startswith(_SPAN) for region in regions)
            merged[name] = _text(regions) + merging.holders_text(list(holders) if some else None)
        else:
            merged |= {f"{name}@{number}": _text(held) for number, held in holders.items()}
    return dict(sorted(merged.items()))


def bits(value: str) -> str:
    """Return a fingerprint without its ranks: equal for equal bits on every layout."""
    return value.partition("@")[0]


def _text(sums: Mapping[str, int]) -> str:
    return f"{sum(sums.values()) % _MODULUS:016x}"
