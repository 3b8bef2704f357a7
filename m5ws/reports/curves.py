"""Curves of quantities by step, thinned while they are read, so that memory does not grow with the steps."""

from collections.abc import Iterable, Mapping, Sequence

from m5ws.pages import charts
from m5ws.pages.charts import Point
from m5ws.records.ledger import Step
from m5ws.repository.ledger.losses import number

POINTS = 1000
"""Most points of a curve."""
_RANGES = POINTS // 2 - 2
_QUANTITIES = 24

Curves = dict[str, list[Point]]
"""Points of a run by quantity."""


class Curve:
    """Points of one quantity in ascending steps. Of many, the lowest and the highest of each range of steps stay."""

    def __init__(self) -> None:
        self._width = 1
        self._added = 0
        self._ranges: list[list[Point]] = []
        self._last: list[Point] = []

    def add(self, step: int, value: float) -> None:
        """Add the next point."""
        if self._added % self._width == 0:
            if len(self._ranges) == _RANGES:
                self._halve()
            self._ranges.append([])
        self._ranges[-1] = _extremes([*self._ranges[-1], (step, value)])
        self._added += 1
        self._last = [(step, value)]

    def cut(self, last: int) -> None:
        """Remove the points after step `last`: these steps are done again."""
        kept = ([point for point in part if point[0] <= last] for part in self._ranges)
        self._ranges = [part for part in kept if part]
        self._added = len(self._ranges) * self._width
        self._last = self._ranges[-1][-1:] if self._ranges else []

    def _halve(self) -> None:
        """Join each two ranges. Their number is even."""
        pairs = zip(self._ranges[::2], self._ranges[1::2], strict=True)
        self._ranges = [_extremes([*one, *other]) for one, other in pairs]
        self._width *= 2

    @property
    def points(self) -> list[Point]:
        """The points that stay, at most `POINTS`; the last one is among them."""
        found = [point for part in self._ranges for point in part]
        return found if found[-1:] == self._last else [*found, *self._last]


def _extremes(points: list[Point]) -> list[Point]:
    """Return the lowest and the highest of points, in order of steps. One that is no number is both."""
    if len(points) <= 2:
        return points
    least = min(points, key=lambda point: (point[1] == point[1], point[1]))
    most = max(points, key=lambda point: (point[1] == point[1], point[1]))
    return sorted({least, most})


def of_steps(steps: Iterable[Step]) -> Curves:
    """Return the curves of the numbers among the quantities of steps, of the first names by order of appearance."""
    curves: dict[str, Curve] = {}
    for step in steps:
        _add(curves, step)
    return {name: curve.points for name, curve in curves.items()}


def _add(curves: dict[str, Curve], step: Step) -> None:
    for name, text in step.quantities.items():
        value = number(text)
        if value is None or (name not in curves and len(curves) >= _QUANTITIES):
            continue
        curves.setdefault(name, Curve()).add(step.step, value)


def names(of_runs: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the names of quantities in several runs: the loss first."""
    known = dict.fromkeys(name for points in of_runs for name in points)
    return sorted(known, key=lambda name: (name != "loss", not name.endswith("loss")))


def draw(labelled: Sequence[tuple[str, Curves]]) -> list[charts.Chart]:
    """Return a chart for each quantity, with the curves of several runs and their labels."""
    return [
        chart
        for name in names(points for _, points in labelled)
        if (chart := charts.draw(name, [(label, points[name]) for label, points in labelled if name in points]))
    ]
