"""Ids of the samples in a script's own batches, as text of a step: "3-9,12-13" for integers, else a JSON list."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec


def format_ids(ids: Sequence[Any]) -> str:
    """Return ids as text. Ranges of integers end before their second number, and keep the order of the batches."""
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        return msgspec.json.encode([str(each) for each in ids]).decode()
    ranges: list[list[int]] = []
    for each in ids:
        if ranges and ranges[-1][1] == each:
            ranges[-1][1] += 1
        else:
            ranges.append([each, each + 1])
    return ",".join(f"{start}-{stop}" for start, stop in ranges)


def contains(text: str, sample: str) -> bool:
    """Return True if ids as text contain a sample. Raises ValueError."""
    if text.startswith("["):
        return sample in msgspec.json.decode(text, type=list[str])
    return sample.isdecimal() and any(start <= int(sample) < stop for start, stop in _ranges(text.split(",")))


def _ranges(parts: Iterable[str]) -> Iterable[tuple[int, int]]:
    for part in parts:
        start, _, stop = part.partition("-")
        yield int(start), int(stop)


def covers(named: str, path: str) -> bool:
    """Return True if a path of a file is the named path, or below it; "." is the workspace."""
    return named in (path, ".") or path.startswith(f"{named.rstrip('/')}/")
