"""Delta debugging: reduce a set of differences that makes runs differ to a set that cannot be reduced further.

The result is 1-minimal: without any one of its elements the runs were not seen to differ. It is the smallest set of all
if it has one element, or if every superset of a differing set differs too. Other sets may differ as well.

Source: A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE Transactions on Software
Engineering 28(2), 2002, section 3 (ddmin, with its three outcomes and its bound of n² + 3n tests).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

Answer = Literal["same", "differs", "unresolved"]
"""Outcome of the test of a set; `unresolved`: the run ended before the outcome was known."""

T = TypeVar("T", bound=Hashable)
Item = TypeVar("Item")
Test = Callable[[frozenset[T]], Answer]

FEW = 8
"""Up to this number, each element is tested alone first: most divergences have one cause."""


def causes(elements: Sequence[T], test: Test[T]) -> Iterator[frozenset[T]]:
    """Yield disjoint 1-minimal sets that differ, until the rest does not; none if all elements together do not.

    `test` may get the same set more than once, and should cache its answers. It never gets the empty set, which is
    known to be the same. Elements are tested in order.
    """
    rest = list(elements)
    while rest and (cause := minimise(rest, test)) is not None:
        yield cause
        rest = [element for element in rest if element not in cause]
        # If the rest without this cause still differs, there is another cause.
        if not rest or test(frozenset(rest)) != "differs":
            return


def minimise(elements: Sequence[T], test: Test[T]) -> frozenset[T] | None:
    """Return a 1-minimal set that differs, None if all elements together do not."""
    if len(elements) <= FEW:
        alone = next((element for element in elements if test(frozenset((element,))) == "differs"), None)
        if alone is not None or len(elements) < 2:
            return None if alone is None else frozenset((alone,))
    if test(frozenset(elements)) != "differs":
        return None
    return frozenset(_ddmin(list(elements), lambda some: test(frozenset(some)) == "differs"))


def most(count: int) -> int:
    """Return an upper bound of the number of sets that `minimise` tests for `count` elements, each counted once."""
    subsets: int = 2**count - 1
    return min(subsets, count * count + 4 * count + 1)


def _ddmin(items: list[Item], differs: Callable[[list[Item]], bool]) -> list[Item]:
    """Return a 1-minimal part of `items`, which are known to differ. The empty part is known not to."""
    count = 2
    while len(items) > 1:
        parts = _split(items, count)
        part = next((part for part in parts if differs(part)), None)
        if part is not None:
            items, count = part, 2
            continue
        rests = [[item for kept in parts if kept is not part for item in kept] for part in parts]
        rest = next((rest for rest in rests if differs(rest)), None)
        if rest is not None:
            items, count = rest, max(count - 1, 2)
        elif count == len(items):
            break
        else:
            count = min(2 * count, len(items))
    return items


def _split(items: list[Item], count: int) -> list[list[Item]]:
    """Return `items` in `count` parts, in order, of nearly equal length."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]
