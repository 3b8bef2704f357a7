"""Fingerprints: a digest of a tensor's bits that does not depend on its sharding.

    sum over elements of mix(bits, global index), modulo 2^64

Every rank sums over its own elements, and the sums add up. The mix contains the index, so that swapped elements change
the sum. Bits are compared, never values: -0.0 would equal +0.0, and NaN would differ from itself. A fingerprint finds
accidents and drift. It does not protect against forgery (the digests of a checkpoint do).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from m5ws.training.backends.base import Box, Piece, Span
from m5ws.training.fingerprint import cpu_sums
from m5ws.training.runtime import collectives
from m5ws.training.state import tensor_bytes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_MODULUS = 1 << 64
_INDEX = -7046029254386353131  # 0x9E3779B97F4A7C15, the golden ratio: it separates neighbouring indices
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9 and below 0x94D049BB133111EB: splitmix64's finalizer
_SECOND = -7723592293110705685
_ROUNDS = ((30, _FIRST), (27, _SECOND), (31, None))
# On a CPU a chunk and its scratch space stay in the L2 cache; an accelerator needs enough work per kernel.
_CHUNK = {"cpu": 1 << 15}
_CHUNK_ACCELERATOR = 1 << 22


Sums = dict[str, dict[str, int]]
"""By name and by region (which elements of the whole tensor), the sum over these elements modulo 2^64."""
_WHOLE = "all"
_SPAN = "span "


def fingerprints(pieces: Iterable[Piece], group: "ProcessGroup | None") -> dict[str, str]:
    """Return every tensor's fingerprint by name, as `merge` returns them; collective, equal on all ranks."""
    return merge(collectives.gather(local(pieces), group))


def local(pieces: Iterable[Piece]) -> Sums:
    """Return this rank's sums; the region of a whole tensor is "all". One synchronisation per device."""
    places: list[tuple[str, str]] = []
    results: list[torch.Tensor] = []
    for piece in pieces:
        places.append((piece.name, _WHOLE if piece.copy == "replica" else _region(piece)))
        results.append(element_sum(piece.tensor, piece.place))
    sums: Sums = defaultdict(dict)
    for (name, region), value in zip(places, _values(results), strict=True):
        sums[name][region] = value
    return dict(sums)


def sums(tensors: list[torch.Tensor]) -> list[int]:
    """Return the sum over each whole tensor's elements, modulo 2^64; one transfer per device."""
    return [value % _MODULUS for value in _values([element_sum(tensor) for tensor in tensors])]


def _region(piece: Piece) -> str:
    if isinstance(piece.place, Span):
        return f"{_SPAN}{piece.place.start}+{piece.tensor.numel()}"
    return f"{piece.place.offsets}+{piece.place.sizes}"


def _values(results: list[torch.Tensor]) -> list[int]:
    """Return the integers in 0-dimensional tensors, with one transfer per device."""
    values: list[int] = [0] * len(results)
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for position, value in enumerate(results):
        by_device[value.device].append(position)
    for positions in by_device.values():
        for position, value in zip(positions, torch.stack([results[p] for p in positions]).tolist(), strict=True):
            values[position] = value
    return values


def merge(ranks: list[Sums]) -> dict[str, str]:
    """Return the fingerprints that all ranks' sums, in order of ranks, give together, in order of names.

    A fingerprint is 16 hex digits. If only some ranks hold the tensor, as in a pipeline stage, the ranks follow:
    "0123456789abcdef@2-3"; `bits` returns the digits. A tensor whose copies differ between ranks has one entry per
    rank, "NAME@RANK". A copy that changes, or is missing, on one rank therefore changes the entry of its name.
    """
    merged: dict[str, str] = {}
    for name in sorted({name for rank in ranks for name in rank}):
        holders = {number: rank[name] for number, rank in enumerate(ranks) if name in rank}
        regions: dict[str, int] = {}
        for held in holders.values():
            regions |= held
        alike = all(held.items() <= regions.items() for held in holders.values())
        if alike and (_WHOLE not in regions or len(regions) == 1):
            merged[name] = _text(regions) + _holders(list(holders), regions, len(ranks))
        else:
            merged |= {f"{name}@{number}": _text(held) for number, held in holders.items()}
    return dict(sorted(merged.items()))


def bits(value: str) -> str:
    """Return a fingerprint without its ranks: equal for equal bits on every layout."""
    return value.partition("@")[0]


def _text(sums: Mapping[str, int]) -> str:
    return f"{sum(sums.values()) % _MODULUS:016x}"


def _holders(numbers: list[int], regions: Mapping[str, int], world: int) -> str:
    """Return "@" and the ranks that hold a tensor, as "@0-3,8"; "" if all do, or if each has other elements."""
    # Spans are ZeRO's: they have no copies, and their ranks depend on the number of ranks alone.
    if len(numbers) == world or any(region.startswith(_SPAN) for region in regions):
        return ""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "@" + ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


@torch.no_grad()
def element_sum(tensor: torch.Tensor, place: Span | Box | None = None) -> torch.Tensor:
    """Return the sum over a local tensor's elements, a 0-dimensional int64 on its device; asynchronous there.

    `place` gives the global indices of the elements; None is a whole tensor.
    """
    words = _words(tensor)
    per_element = words.numel() // max(tensor.numel(), 1) or 1
    span = _span(place or Span())
    if span is not None and words.device.type == "cpu":
        # Not by Tensor.numpy(), after which torch does not release the memory, as FSDP does of gathered parameters.
        plain = np.from_dlpack(words).view(f"u{words.element_size()}")
        return torch.tensor(_wrap(cpu_sums.total(plain, span * per_element, _INDEX, _ROUNDS)))
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    size = min(_CHUNK.get(words.device.type, _CHUNK_ACCELERATOR), words.numel())
    if not size:
        return total
    mixed, scratch, ramp = (torch.empty(size, dtype=torch.int64, device=words.device) for _ in range(3))
    torch.arange(size, out=ramp)
    if span is not None:
        ramp.mul_(_INDEX)
    for start in range(0, words.numel(), size):
        count = min(size, words.numel() - start)
        bits, low, steps = mixed[:count], scratch[:count], ramp[:count]
        bits.copy_(words[start : start + count])
        if span is not None:
            bits.add_(steps).add_(_wrap((span * per_element + start) * _INDEX))
        else:
            bits.add_(_box_indices(place, steps + start, per_element).mul_(_INDEX))  # type: ignore[arg-type]
        total.add_(_mix(bits, low).sum())
    return total


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bits, flat, as unsigned integers of its element size; complex128 as two words each."""
    flat = tensor_bytes.flat(tensor)
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}.get(flat.element_size(), torch.int64)
    return flat.view(unsigned)


def _mix(bits: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """Mix in place. Shifts of int64 are arithmetic, so the extended sign bits are masked off."""
    for shift, factor in _ROUNDS:
        torch.bitwise_right_shift(bits, shift, out=scratch)
        bits.bitwise_xor_(scratch.bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            bits.mul_(factor)
    return bits


def _span(place: Span | Box) -> int | None:
    """Return the first global index if the local elements are consecutive ones, else None."""
    if isinstance(place, Span):
        return place.start
    partial = [d for d in range(len(place.shape)) if place.sizes[d] != place.shape[d]]
    if partial and any(size != 1 for size in place.sizes[: partial[-1]]):
        return None
    return sum(offset * stride for offset, stride in zip(place.offsets, _strides(place.shape), strict=True))


def _box_indices(box: Box, position: torch.Tensor, per_element: int) -> torch.Tensor:
    """Return the global word indices of a box's local words, given by their local positions."""
    element = position.div(per_element, rounding_mode="floor")
    index = torch.zeros_like(element)
    local_strides = _strides(box.sizes)
    for offset, local_stride, stride in zip(box.offsets, local_strides, _strides(box.shape), strict=True):
        coordinate = element.div(max(local_stride, 1), rounding_mode="floor")
        element = element - coordinate * local_stride
        index += (coordinate + offset) * stride
    return index * per_element + position % per_element


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _wrap(value: int) -> int:
    """Return a Python integer as the int64 with the same low 64 bits."""
    return (value + (1 << 63)) % _MODULUS - (1 << 63)
