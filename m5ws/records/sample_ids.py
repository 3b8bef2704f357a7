"""Samples of a step as text (`Step.samples`).

Positions in an order are ranges by epoch: "0:1024-1040,1:0-8". Ids of the samples in a script's own batches are
"3-9,12-13" for integers, else a JSON list.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Range = tuple[int, int, int]
"""An epoch, and the first position and the position after the last of a range in the order of that epoch."""


def format_ranges(ranges: Iterable[Range]) -> str:
    """Return ranges as text, adjacent ranges as one: "0:1024-1040,1:0-8"."""
    return ",".join(f"{epoch}:{start}-{stop}" for epoch, start, stop in _merge(ranges))


def format_sources(batches: Iterable[Mapping[str, Iterable[Range]]]) -> dict[str, str]:
    """Return the ranges of each source in some batches as text."""
    joined: dict[str, list[Range]] = {}
    for ranges in batches:
        for name, each in ranges.items():
            joined.setdefault(name, []).extend(each)
    return {name: format_ranges(ranges) for name, ranges in joined.items() if ranges}


def parse_ranges(text: str) -> list[Range]:
    """Return the ranges of `format_ranges`. Raises ValueError."""
    parts = (part.partition(":") for part in filter(None, text.split(",")))
    return [(int(epoch), *_bounds(bounds)) for epoch, _, bounds in parts]


def format_ids(ids: Sequence[Any]) -> str:
    """Return ids as text. Ranges of integers end before their second number, and keep the order of the batches."""
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        return msgspec.json.encode([str(each) for each in ids]).decode()
    return ",".join(f"{start}-{stop}" for _, start, stop in _merge((0, each, each + 1) for each in ids))


def contains(text: str, sample: str) -> bool:
    """Return True if ids as text contain a sample. Raises ValueError."""
    if text.startswith("["):
        return sample in msgspec.json.decode(text, type=list[str])
    return sample.isdecimal() and any(start <= int(sample) < stop for start, stop in map(_bounds, text.split(",")))


def _merge(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges that are not empty, adjacent ranges as one."""
    merged: list[Range] = []
    for epoch, start, stop in ranges:
        if start < stop:
            is_adjacent = bool(merged) and merged[-1][::2] == (epoch, start)
            merged.append((epoch, merged.pop()[1] if is_adjacent else start, stop))
    return merged


def _bounds(text: str) -> tuple[int, int]:
    start, _, stop = text.partition("-")
    return int(start), int(stop)


def covers(named: str, path: str) -> bool:
    """Return True if a path of a file is the named path, or below it; "." is the workspace."""
    return named in (path, ".") or path.startswith(f"{named.rstrip('/')}/")
