"""Charts: every value has a place, and every line its own look."""

import math
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from m5ws.pages import charts

_VALUES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(_VALUES, min_size=1, max_size=30))
@example([sys.float_info.max])
@example([-sys.float_info.max])
def test_finite_values_are_drawn_within_the_chart_and_other_values_are_omitted(values: list[float]) -> None:
    chart = charts.draw("loss", [("a", list(enumerate(values)))])
    finite = sum(map(math.isfinite, values))
    assert (chart is None) == (finite == 0)
    places = [place for line in chart.lines for part in line.parts for place in part] if chart is not None else []
    assert len(places) == finite
    assert all(0 <= x <= 720 and 0 <= y <= 260 for x, y in places)


def test_fifty_lines_have_fifty_different_styles() -> None:
    chart = charts.draw("loss", [(f"run {number}", [(1, 1.0), (2, number)]) for number in range(50)])
    assert chart is not None and len({(line.colour, line.dash) for line in chart.lines}) == 50
