"""Ranges of versions, as text: `>=2.19,<2.24`. Only leading numbers are compared: `1.7.4-aws` is 1.7.4."""

import operator
import re

_COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt}
_BOUND = re.compile(r"(>=|<=|<|>)(\d+(?:\.\d+)*)")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def is_in(version: str | None, bounds: str) -> bool:
    """Return True if a version is in all bounds. A version that is absent or does not begin with a number is in none.

    Bounds have at most as many numbers as count: 1.5.0 is in `<=1.5`, and 1.5.1 is not in `<=1.5.0`.
    """
    match = _NUMBERS.match(version or "")
    return match is not None and all(_holds(match[0], bound) for bound in bounds.split(","))


def _holds(version: str, bound: str) -> bool:
    match = _BOUND.fullmatch(bound.strip())
    if match is None:
        raise ValueError(f"{bound!r} is not a bound of versions")
    limit = _tuple(match[2])
    return bool(_COMPARE[match[1]](_tuple(version)[: len(limit)], limit))


def _tuple(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
