"""Curves: thinned to a thousand points while they are read."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from m5ws.pages.charts import Point
from m5ws.records.exact import encode
from m5ws.records.ledger import Step
from m5ws.reports import curves


def _curve(values: Sequence[float]) -> list[Point]:
    steps = {step: Step(step=step, quantities={"loss": encode(value)}) for step, value in enumerate(values)}
    return curves.of_steps(steps).get("loss", [])


@given(st.lists(st.floats(-1e6, 1e6), max_size=499))
def test_a_short_curve_keeps_every_point(values: list[float]) -> None:
    assert _curve(values) == list(enumerate(values))


@given(st.integers(500, 3000), st.data())
def test_a_long_curve_keeps_its_lowest_highest_and_last_points_in_order(length: int, data: st.DataObject) -> None:
    low, high = data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, length - 1))
    values = [math.sin(step) for step in range(length)]
    values[high], values[low] = 5.0, -5.0
    points = _curve(values)
    assert 300 < len(points) <= curves.POINTS
    assert points == sorted(points) and len(set(points)) == len(points)
    assert all(values[step] == value for step, value in points)
    assert {low, high, length - 1} <= {step for step, _ in points}


def test_nan_values_stay_in_a_curve_and_texts_have_no_curve() -> None:
    quantities = {"loss": "nan:7ff8000000000000", "note": "text"}
    found = curves.of_steps({step: Step(step=step, quantities=quantities) for step in range(1, 4)})
    assert found.keys() == {"loss"} and all(math.isnan(value) for _, value in found["loss"])
    assert curves.names([{"lr": 1, "val_loss": 1}, {"loss": 1}]) == ["loss", "val_loss", "lr"]
