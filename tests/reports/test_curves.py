"""Curves: thinned to a thousand points while they are read."""

import math

from hypothesis import given
from hypothesis import strategies as st

from m5ws.records.ledger import Step
from m5ws.reports import curves
from m5ws.reports.curves import Curve


def _curve(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


@given(st.lists(st.floats(-1e6, 1e6), max_size=498))
def test_a_short_curve_keeps_every_point(values: list[float]) -> None:
    assert _curve(values).points == list(enumerate(values))


@given(st.integers(499, 9000), st.data())
def test_a_long_curve_keeps_its_lowest_highest_and_last_points_in_order(length: int, data: st.DataObject) -> None:
    low, high = data.draw(st.integers(0, length - 1)), data.draw(st.integers(0, length - 1))
    values = [math.sin(step) for step in range(length)]
    values[high], values[low] = 5.0, -5.0
    points = _curve(values).points
    assert len(points) <= curves.POINTS
    assert points == sorted(points) and len(set(points)) == len(points)
    assert all(values[step] == value for step, value in points)
    assert {low, high, length - 1} <= {step for step, _ in points}


def test_the_points_that_are_held_do_not_grow_with_the_steps() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(step, float(step % 97))
        assert len(curve._ranges) <= curves.POINTS // 2
    assert curve.points[-1] == (99_999, float(99_999 % 97)) and len(curve.points) > 400


@given(st.integers(1, 3000), st.data())
def test_a_curve_that_was_cut_goes_on_with_the_steps_that_are_done_again(length: int, data: st.DataObject) -> None:
    curve, last = _curve([float(step) for step in range(length)]), data.draw(st.integers(-1, length))
    curve.cut(last)
    assert all(step <= last for step, _ in curve.points)
    for step in range(last + 1, last + 1 + length):
        curve.add(step, -1.0)
    points = curve.points
    assert points == sorted(points) and len(points) <= curves.POINTS
    assert points[-1] == (last + length, -1.0)


def test_a_value_that_is_no_number_stays_and_a_text_has_no_curve() -> None:
    steps = [Step(step=step, quantities={"loss": "nan:7ff8000000000000", "note": "text"}) for step in range(1, 4)]
    found = curves.of_steps(steps)
    assert found.keys() == {"loss"} and all(math.isnan(value) for _, value in found["loss"])
    assert curves.names([{"lr": 1, "val_loss": 1}, {"loss": 1}]) == ["loss", "val_loss", "lr"]
