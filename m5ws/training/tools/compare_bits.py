"""Bitwise comparison of two ranges of elements, for `checkpoints.diff`.

The bits alone decide which elements differ. Only these become numbers, as float64, to measure the difference.
Differences of integers beyond 2^53 are therefore rounded.
"""

import math

import torch

from m5ws.records.verdict import ElementDifferences

_AT_ONCE = 1 << 20
"""Number of elements that are compared together: it keeps the temporary memory below 100 MiB."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def compare(a: bytearray, b: bytearray, dtype: str, first: int) -> ElementDifferences:
    """Return the differences of the elements in two buffers of equal length; the first is element `first`."""
    kind: torch.dtype = getattr(torch, dtype)
    words_a, words_b = (torch.frombuffer(data, dtype=torch.uint8) for data in (a, b))
    total = ElementDifferences(compared=0)
    step = _AT_ONCE * kind.itemsize
    for start in range(0, len(a), step):
        end = start + step
        total += _compare_range(words_a[start:end], words_b[start:end], kind, first + start // kind.itemsize)
    return total


def _compare_range(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, first: int) -> ElementDifferences:
    words = _WORDS[kind.itemsize]
    rows: tuple[torch.Tensor, ...] = (a.view(words), b.view(words))
    unequal = rows[0] != rows[1]
    if kind.itemsize > words.itemsize:
        rows = tuple(side.view(-1, kind.itemsize // words.itemsize) for side in rows)
        unequal = unequal.view(rows[0].shape).any(dim=1)
    places = unequal.nonzero().view(-1)
    count = a.numel() // kind.itemsize
    if not places.numel():
        return ElementDifferences(compared=count)
    # Moved as words: not every element type can be indexed.
    values_a, values_b = (side[places].view(kind).view(-1) for side in rows)
    x, y = _numbers(values_a), _numbers(values_b)
    nans = x.isnan() & y.isnan()
    lone = x.isnan() ^ y.isnan()
    zeros = (x == 0) & (y == 0)
    absolute, relative = _differences(x, y, ~(x.isnan() | y.isnan() | zeros))
    return ElementDifferences(
        compared=count,
        differing=int(places.numel()),
        first=first + int(places[0]),
        first_a=_value(values_a[:1]),
        first_b=_value(values_b[:1]),
        max_absolute=absolute,
        max_relative=relative,
        zero_signs=int(zeros.sum()),
        nans=int(nans.sum()),
        nan_in_one=int(lone.sum()),
    )


def _numbers(values: torch.Tensor) -> torch.Tensor:
    if values.dtype.is_complex:
        return values.to(torch.complex128)
    # Few operators support the eight-bit floating types.
    return (values.float() if values.dtype.is_floating_point and values.dtype.itemsize < 4 else values).double()


def _differences(x: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> tuple[str | None, str | None]:
    """Return the largest absolute difference, and the largest relative to the larger value; None if no numbers."""
    x, y = x[known], y[known]
    if not x.numel():
        return None, None
    absolute = (x - y).abs()
    relative = absolute / torch.maximum(x.abs(), y.abs())
    # Infinity over infinity counts as infinity.
    return float(absolute.max()).hex(), float(relative.nan_to_num(nan=math.inf, posinf=math.inf).max()).hex()


def _value(element: torch.Tensor) -> str:
    """Return an element as text for people, with its bits."""
    size = element.dtype.itemsize
    bits = element.view(torch.uint8).tolist()
    number = _numbers(element)[0].item()
    text = (
        f"{int(element.item())}" if not (element.dtype.is_floating_point or element.dtype.is_complex) else f"{number!r}"
    )
    return f"{text} (0x{int.from_bytes(bytes(bits), 'little'):0{2 * size}x})"
