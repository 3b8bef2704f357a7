"""Curves in Braille characters, of two by four dots each."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from m5ws.pages import charts

_BLANK = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of a dot, by its column and, from the top, its row."""


def draw(points: Sequence[tuple[int, float]], columns: int, rows: int) -> list[str]:
    """Return a curve as lines of `columns` characters; none without a finite value or without room.

    A value that is not finite is a gap.
    """
    parts = list(charts.finite_parts(points))
    if not parts or columns < 1 or rows < 1:
        return []
    steps = charts.limits([float(part[end][0]) for part in (parts[0], parts[-1]) for end in (0, -1)])
    values = charts.limits([value for part in parts for _, value in part])
    cells = [[_BLANK] * columns for _ in range(rows)]
    for part in parts:
        places = [
            (
                round((2 * columns - 1) * charts.share(step, steps)),
                round((4 * rows - 1) * (1 - charts.share(value, values))),
            )
            for step, value in part
        ]
        for x, y in _line(places):
            cells[y // 4][x // 2] |= _BITS[x % 2][y % 4]
    return ["".join(map(chr, row)) for row in cells]


def _line(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots of lines from each place to the next."""
    yield places[0]
    for (x, y), (next_x, next_y) in pairwise(places):
        count = max(next_x - x, abs(next_y - y))
        for number in range(1, count + 1):
            share = number / count
            yield round(x + (next_x - x) * share), round(y + (next_y - y) * share)
