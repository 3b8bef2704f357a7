"""How two stretches of elements differ, bit for bit: `checkpoints.diff` asks it about what it has read.

Which elements differ is decided by their bits alone; only then are those turned into numbers, as float64, to say by
how much. Differences of integers beyond 2^53 are therefore rounded.
"""

import math

import torch

from m5ws.records.verdict import Elements

_AT_ONCE = 1 << 20
"""So many elements are compared together: what is made of them while that is done stays below 100 MiB."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def compare(a: bytearray, b: bytearray, dtype: str, first: int) -> Elements:
    """Return how the elements in two buffers of equal length differ; the first of them is element `first`."""
    kind: torch.dtype = getattr(torch, dtype)
    one, other = (torch.frombuffer(data, dtype=torch.uint8) for data in (a, b))
    found = Elements(compared=0)
    step = _AT_ONCE * kind.itemsize
    for start in range(0, len(a), step):
        found += _stretch(one[start : start + step], other[start : start + step], kind, first + start // kind.itemsize)
    return found


def _stretch(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, first: int) -> Elements:
    words = _WORDS[kind.itemsize]
    rows: tuple[torch.Tensor, ...] = (a.view(words), b.view(words))
    unequal = rows[0] != rows[1]
    if kind.itemsize > words.itemsize:
        rows = tuple(side.view(-1, kind.itemsize // words.itemsize) for side in rows)
        unequal = unequal.view(rows[0].shape).any(dim=1)
    places = unequal.nonzero().view(-1)
    count = a.numel() // kind.itemsize
    if not places.numel():
        return Elements(compared=count)
    # Moved as words: not every type of element can be indexed.
    one, other = (side[places].view(kind).view(-1) for side in rows)
    x, y = _numbers(one), _numbers(other)
    nans = x.isnan() & y.isnan()
    lone = x.isnan() ^ y.isnan()
    zeros = (x == 0) & (y == 0)
    absolute, relative = _differences(x, y, ~(x.isnan() | y.isnan() | zeros))
    return Elements(
        compared=count,
        differing=int(places.numel()),
        first=first + int(places[0]),
        first_a=_value(one[:1]),
        first_b=_value(other[:1]),
        max_absolute=absolute,
        max_relative=relative,
        zero_signs=int(zeros.sum()),
        nans=int(nans.sum()),
        nan_in_one=int(lone.sum()),
    )


def _numbers(values: torch.Tensor) -> torch.Tensor:
    if values.dtype.is_complex:
        return values.to(torch.complex128)
    # The eight-bit floating types are known to few operators.
    return (values.float() if values.dtype.is_floating_point and values.dtype.itemsize < 4 else values).double()


def _differences(x: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> tuple[str | None, str | None]:
    """Return the greatest absolute difference, and the greatest relative to the larger of both, where there is one."""
    x, y = x[known], y[known]
    if not x.numel():
        return None, None
    absolute = (x - y).abs()
    relative = absolute / torch.maximum(x.abs(), y.abs())
    # Infinity over infinity: as far apart as can be.
    return float(absolute.max()).hex(), float(relative.nan_to_num(nan=math.inf, posinf=math.inf).max()).hex()


def _value(element: torch.Tensor) -> str:
    """Return an element for people, with its bits where the number does not tell them."""
    size = element.dtype.itemsize
    bits = element.view(torch.uint8).tolist()
    number = _numbers(element)[0].item()
    text = (
        f"{int(element.item())}" if not (element.dtype.is_floating_point or element.dtype.is_complex) else f"{number!r}"
    )
    return f"{text} (0x{int.from_bytes(bytes(bits), 'little'):0{2 * size}x})"
