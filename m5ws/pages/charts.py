"""Line charts: the places of lines and labels, which parts.html draws as SVG."""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

_COLOURS = (
    *("#0969da", "#cf222e", "#1a7f37", "#9a6700", "#8250df"),
    *("#bf3989", "#0b7285", "#bc4c00", "#57606a", "#4d2d00"),
)
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "1 6")
_TICKS = 5
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 708, 12, 226
"""The area of the lines, in an image of 720 x 260 pixels."""

Point = tuple[int, float]
Place = tuple[float, float]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart with its look, and the places of its parts."""

    label: str
    colour: str
    dash: str
    parts: list[list[Place]]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart in pixels: `lines` in the order of drawing, labels `across` by their x, and labels `up` by their y."""

    title: str
    lines: list[Line]
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]


def draw(title: str, lines: Sequence[tuple[str, Sequence[Point]]]) -> Chart | None:
    """Return a chart of lines with their labels, each in its own colour or dashes; None if none has a finite value.

    A value that is not finite interrupts a line.
    """
    points = [point for _, line in lines for part in finite_parts(line) for point in part]
    if not points:
        return None
    steps, values = limits([float(step) for step, _ in points]), limits([value for _, value in points])

    def at_x(step: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * share(step, steps), 1)

    def at_y(value: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * share(value, values), 1)

    drawn = [
        Line(
            label=label,
            colour=_COLOURS[number % len(_COLOURS)],
            dash=_DASHES[number // len(_COLOURS) % len(_DASHES)],
            parts=[[(at_x(step), at_y(value)) for step, value in part] for part in finite_parts(line)],
        )
        for number, (label, line) in enumerate(lines)
    ]
    across = [(at_x(step), f"{step:.12g}") for step in ticks(*steps) if step == int(step)]
    return Chart(title=title, lines=drawn, across=across, up=[(at_y(y), f"{y:.4g}") for y in ticks(*values)])


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest of finite values, which are not equal."""
    least, most = min(values), max(values)
    if least == most:
        margin = abs(least) / 2 or 1.0
        return max(least - margin, -sys.float_info.max), min(most + margin, sys.float_info.max)
    return least, most


def share(value: float, between: tuple[float, float]) -> float:
    """Return the place of a value between two others: 0 at the first, 1 at the second."""
    least, most = between
    # Halves, because the difference of two doubles may be infinite.
    return (value / 2 - least / 2) / (most / 2 - least / 2)


def ticks(least: float, most: float) -> list[float]:
    """Return about five round numbers from `least` to `most`."""
    rough = most / _TICKS - least / _TICKS
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if not size or not math.isfinite(size):
        return [least, most]
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough)
    first, last = math.ceil(least / step), math.floor(most / step)
    return [number * step for number in range(first, last + 1)] or [least]


def finite_parts(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the parts of a line between values that are not finite."""
    for is_finite, part in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            yield list(part)
