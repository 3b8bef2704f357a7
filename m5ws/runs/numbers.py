"""Sets of numbers that mostly ascend, as steps do, in 8 bytes for each of them."""

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Numbers:
    """A set of integers. Iterates in ascending order. A number that is added at its end costs no search."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = array("q")
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a number, if it is not there."""
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
        elif number not in self:
            self._numbers.insert(bisect_left(self._numbers, number), number)

    def cut(self, last: int) -> None:
        """Remove all numbers after `last`."""
        del self._numbers[bisect_right(self._numbers, last) :]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.up_to(number) == number

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def up_to(self, number: int) -> int | None:
        """Return the greatest number that is not greater than `number`, or None."""
        place = bisect_right(self._numbers, number)
        return self._numbers[place - 1] if place else None


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
