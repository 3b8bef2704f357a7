"""Curves of quantities by step, thinned while they are read, so that memory does not grow with the steps."""

import math
from collections.abc import Iterable, Mapping, Sequence

from m5ws.pages import charts
from m5ws.pages.charts import Point
from m5ws.records.ledger import Step
from m5ws.repository.ledger.losses import number

POINTS = 1000
"""Most points of a curve."""
_QUANTITIES = 24

Curves = dict[str, list[Point]]
"""Points of a run by quantity."""


def of_steps(steps: Mapping[int, Step]) -> Curves:
    """Return the curves of the numbers among the quantities of steps, of the first names by order of appearance.

    Of many steps, the lowest and the highest value of each range of steps stay, and the last value.
    """
    width = max(1, math.ceil(len(steps) / (POINTS // 2 - 1)))
    ranges: dict[str, dict[int, set[Point]]] = {}
    last: Curves = {}
    for place, step in enumerate(steps.values()):
        for name, text in step.quantities.items():
            value = number(text)
            if value is None or (name not in ranges and len(ranges) >= _QUANTITIES):
                continue
            parts = ranges.setdefault(name, {})
            parts[place // width] = _extremes({*parts.get(place // width, ()), (step.step, value)})
            last[name] = [(step.step, value)]
    return {name: sorted({*last[name], *set().union(*parts.values())}) for name, parts in ranges.items()}


def _extremes(points: set[Point]) -> set[Point]:
    """Return the lowest and the highest of points. A point that is no number is both."""
    ordered = sorted(points, key=lambda point: (point[1] == point[1], point[1]))
    return {ordered[0], ordered[-1]}


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
