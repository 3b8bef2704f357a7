"""Rules of the loss on series of losses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.settings import LossSettings
from m5ws.records import exact
from m5ws.records.ledger import Step
from m5ws.supervision.losses import Finding, Losses

_ALL = LossSettings(jump=10.0, flat=100, stop=("nan", "jump"))


def _find(losses: list[float], settings: LossSettings = _ALL) -> list[Finding]:
    """Return the findings in the losses of steps 1, 2, …"""
    rules = Losses(settings)
    steps = [Step(step=number, quantities={"loss": exact.encode(loss)}) for number, loss in enumerate(losses, 1)]
    return [finding for step in steps for finding in rules.add(step)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_without_a_number_is_found_once_and_without_a_setting(loss: float) -> None:
    losses = [2.0, 1.5, loss, loss, 1.0, loss]
    assert _find(losses, LossSettings()) == [Finding(step=3, text=f"the loss is {loss} at step 3", stops=False)]
    assert [(finding.step, finding.stops) for finding in _find(losses)] == [(3, True)]


def test_a_jump_is_a_factor_of_the_median_of_a_hundred_steps() -> None:
    quiet = [1.0 + number % 2 / 10 for number in range(100)]
    assert _find([*quiet[:99], 1e6]) == []  # No median yet.
    assert _find([*quiet, 10.4]) == []
    (found,) = _find([*quiet, 10.6, 10.6])
    assert (found.step, found.stops) == (101, True)
    assert found.text == "the loss 10.6 is more than 10 times the median of 100 steps, 1.05, at step 101"
    assert _find([-loss for loss in quiet] + [1e6]) == []


def test_a_loss_with_equal_bits_is_found_after_the_number_of_steps() -> None:
    assert _find([0.7] * 99 + [0.7000000000000001] + [0.7] * 99) == []
    (found,) = _find([3.0] + [0.7] * 150)
    assert (found.step, found.stops, found.text) == (101, False, "the loss has been 0.7 in 100 steps at step 101")


@given(st.lists(st.floats(min_value=0.5, max_value=4.9), max_size=300, unique=True))
def test_a_healthy_loss_breaks_no_rule(losses: list[float]) -> None:
    assert _find(losses) == []


def test_a_step_without_a_loss_breaks_no_rule() -> None:
    assert Losses(_ALL).add(Step(step=1, quantities={"lr": exact.encode(float("nan"))})) == []
