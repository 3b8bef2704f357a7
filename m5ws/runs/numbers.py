"""A set of numbers that mostly ascend in even strides, as steps do, in the memory of a few of them."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Numbers:
    """A set of integers. Iterates in ascending order.

    Those added in ascending order are held as ranges; each of the others takes the memory of one number.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._ranges: list[range] = []
        self._others: set[int] = set()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a number, if it is not there."""
        last = self._ranges[-1] if self._ranges else None
        if last is None or number > last[-1]:
            self._append(last, number)
        elif number not in self:
            self._others.add(number)

    def _append(self, last: range | None, number: int) -> None:
        if last is not None and len(last) == 1:
            self._ranges[-1] = range(last[0], number + 1, number - last[0])
        elif last is not None and number == last[-1] + last.step:
            self._ranges[-1] = range(last[0], number + 1, last.step)
        else:
            self._ranges.append(range(number, number + 1))

    def cut(self, last: int) -> None:
        """Remove all numbers after `last`."""
        kept = (part[: bisect_right(part, last)] for part in self._ranges)
        self._ranges = [part for part in kept if part]
        self._others = {number for number in self._others if number <= last}

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        place = bisect_right(self._ranges, number, key=lambda part: part[0])
        return (place > 0 and number in self._ranges[place - 1]) or number in self._others

    def __iter__(self) -> Iterator[int]:
        ascending = (number for part in self._ranges for number in part)
        return heapq.merge(ascending, sorted(self._others)) if self._others else ascending

    def __len__(self) -> int:
        return sum(map(len, self._ranges)) + len(self._others)

    @property
    def last(self) -> int | None:
        """The greatest number, or None. It is the end of the last range, since others are added below it."""
        ends = [part[-1] for part in self._ranges[-1:]]
        return max([*ends, *self._others], default=None)

    def up_to(self, number: int) -> int | None:
        """Return the greatest number that is not greater than `number`, or None."""
        lower = [other for other in self._others if other <= number]
        place = bisect_right(self._ranges, number, key=lambda part: part[0])
        if place:
            part = self._ranges[place - 1]
            lower.append(part[bisect_right(part, number) - 1])
        return max(lower, default=None)


def union(sets: Iterable[Iterable[int]]) -> Iterator[int]:
    """Yield the numbers of ascending iterables, each once, in ascending order."""
    before: int | None = None
    for number in heapq.merge(*sets):
        if number != before:
            yield number
        before = number


def common(first: Iterable[int], second: Iterable[int]) -> int:
    """Return the number of common elements of two ascending iterables without repetitions."""
    before, count = None, 0
    for number in heapq.merge(first, second):
        count += number == before
        before = number
    return count
