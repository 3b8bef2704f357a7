"""Line charts as inline SVG."""

import math
import sys
from collections.abc import Iterator, Sequence

import msgspec

from m5ws.pages.markup import Markup, tag

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 34
_COLOURS = (
    "#0969da",
    "#cf222e",
    "#1a7f37",
    "#9a6700",
    "#8250df",
    "#bf3989",
    "#0b7285",
    "#bc4c00",
    "#57606a",
    "#4d2d00",
)
_DASHES = (None, "7 3", "2 3", "9 3 2 3", "1 6")
_TICKS = 5


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart: its label, and its points by step. A value that is not finite interrupts the line."""

    label: str
    points: Sequence[tuple[int, float]]


def chart(title: str, lines: Sequence[Line]) -> Markup | None:
    """Return a chart with its title and legend; None if no line has a finite value.

    Lines are drawn in order, each with its own colour or dashes. The first one is broad and pale, so that a later line
    with equal values lies within it.
    """
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return None
    scale = _Scale(points)
    drawn = [part for number, line in enumerate(lines) for part in _drawn(line, number, scale)]
    figure = tag(
        "svg",
        tag("title", title),
        _axes(scale),
        drawn,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
    )
    legend = tag(
        "ul", [tag("li", _swatch(number), " ", line.label) for number, line in enumerate(lines)], class_="legend"
    )
    return tag("figure", tag("figcaption", tag("strong", title)), figure, legend)


class _Scale:
    """The position of a point in the chart."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self.x = limits([float(step) for step, _ in points])
        self.y = limits([value for _, value in points])

    def at_x(self, step: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * share(step, self.x), 1)

    def at_y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share(value, self.y), 1)


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


def _axes(scale: _Scale) -> list[Markup]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    elements = []
    for value in ticks(*scale.y):
        y = scale.at_y(value)
        elements += [
            tag("line", x1=_LEFT, x2=right, y1=y, y2=y, stroke="#8884"),
            tag("text", f"{value:.4g}", x=_LEFT - 6, y=y + 4, text_anchor="end"),
        ]
    for value in ticks(*scale.x):
        if value == int(value):
            elements.append(tag("text", f"{value:.12g}", x=scale.at_x(value), y=bottom + 16, text_anchor="middle"))
    elements.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, stroke="currentColor"))
    return [*elements, tag("text", "step", x=right, y=_HEIGHT - 4, text_anchor="end")]


def ticks(least: float, most: float) -> list[float]:
    """Return about five round numbers from `least` to `most`."""
    rough = most / _TICKS - least / _TICKS
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if not size or not math.isfinite(size):
        return [least, most]
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough)
    first, last = math.ceil(least / step), math.floor(most / step)
    return [number * step for number in range(first, last + 1)] or [least]


def _drawn(line: Line, number: int, scale: _Scale) -> list[Markup]:
    style = _style(number)
    elements = []
    for run in finite_parts(line.points):
        places = [(scale.at_x(step), scale.at_y(value)) for step, value in run]
        if len(places) == 1:
            (x, y) = places[0]
            elements.append(tag("circle", tag("title", line.label), cx=x, cy=y, r=2.5, fill=style["stroke"]))
        else:
            path = " ".join(f"{x:g},{y:g}" for x, y in places)
            elements.append(tag("polyline", points=path, fill="none", **style))
    return elements


def finite_parts(points: Sequence[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """Yield the parts of a line between values that are not finite."""
    part: list[tuple[int, float]] = []
    for step, value in points:
        if math.isfinite(value):
            part.append((step, value))
        elif part:
            yield part
            part = []
    if part:
        yield part


def _style(number: int) -> dict[str, str | float | None]:
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    broad: dict[str, str | float | None] = {"stroke_width": 6, "stroke_opacity": 0.4}
    width = broad if number == 0 else {"stroke_width": 1.5}
    return {"stroke": _COLOURS[number % len(_COLOURS)], "stroke_dasharray": dash, **width}


def _swatch(number: int) -> Markup:
    line = tag("line", x1=0, x2=26, y1=5, y2=5, **_style(number))
    return tag("svg", line, width=26, height=10, aria_hidden="true")
