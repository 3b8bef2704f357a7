"""Trajectories that are not equal in bits: their largest relative difference, and cases without one."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.records import exact
from m5ws.records.ledger import Step
from m5ws.records.reasons import Differs
from m5ws.records.verdict import Verdict
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.distances import relative
from m5ws.reproduce.verdict.tolerance import judge_tolerance
from m5ws.runs.history import History
from m5ws.wording.sentences import describe

DIVERGED = Verdict(run="a" * 12, replay="b" * 12, outcome="diverged", reasons=(Differs(),))
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def _step(number: int, loss: float, batch: str = "0", **more: float) -> Step:
    quantities = {name: value.hex() for name, value in {"loss": loss, **more}.items()}
    return Step(step=number, quantities=quantities, batch=batch * 64)


def _compared(original: list[Step], replayed: list[Step]) -> Comparison:
    history = History()
    for event in original:
        history.add("0", event)
    comparison = Comparison(history)
    for event in replayed:
        comparison.feed("0", event)
    return comparison


def test_the_value_with_the_largest_difference_is_named() -> None:
    original = [_step(1, 2.0, grad_norm=1.0), _step(2, 1.0, grad_norm=1.0)]
    replayed = [_step(1, 2.0, grad_norm=1.001), _step(2, 0.99, grad_norm=1.0)]
    close = judge_tolerance(DIVERGED, _compared(original, replayed), 0.0101)
    assert close.outcome == "consistent" and close.exit_code == 0
    assert close.apart is not None
    assert (close.apart.quantity, close.apart.step, close.apart.values) == ("loss", 2, 4)
    assert close.apart.relative == (1.0 - 0.99) / 1.0
    assert "bits differ" in describe(close) and "0.0101" in describe(close)
    far = judge_tolerance(DIVERGED, _compared(original, replayed), 0.0099)
    assert (far.outcome, far.exit_code, far.apart) == ("diverged", 1, close.apart)


@pytest.mark.parametrize(
    ("replayed", "why"),
    [
        ([_step(1, 2.0)], "steps 2 of the original were not replayed"),
        ([_step(1, 2.0), _step(2, 1.0, batch="1")], "the batches of step 2 differ"),
        ([_step(1, 2.0), _step(2, 1.0, accuracy=1.0)], "the quantities of step 2 differ"),
        ([_step(1, 2.0), _step(2, math.nan)], "above the tolerance 1"),
        ([_step(1, 2.0), _step(2, math.inf)], "above the tolerance 1"),
    ],
)
def test_replays_with_different_work_are_within_no_tolerance(replayed: list[Step], why: str) -> None:
    verdict = judge_tolerance(DIVERGED, _compared([_step(1, 2.0), _step(2, 1.0)], replayed), 1.0)
    assert verdict.outcome == "diverged" and why in describe(verdict)


def test_a_nan_equals_only_a_nan_with_the_same_bits() -> None:
    nan, payload = exact.encode(math.nan), "nan:7ff8000000000001"
    assert relative(nan, nan) == 0.0
    assert relative(nan, payload) == relative(nan, (1.0).hex()) == math.inf


@given(st.integers(0, 2**64 - 1))
def test_exact_text_preserves_every_bit(bits: int) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    assert struct.pack(">d", exact.decode(exact.encode(value))) == bits.to_bytes(8, "big")


def test_an_equal_replay_stays_reproduced_with_a_tolerance() -> None:
    equal = Verdict(run="a" * 12, replay="b" * 12, outcome="reproduced")
    assert judge_tolerance(equal, _compared([_step(1, 2.0)], [_step(1, 2.0)]), 1e-9) is equal


@given(_NUMBERS, _NUMBERS)
def test_the_statistic_is_symmetric_and_bounded(a: float, b: float) -> None:
    difference = relative(a.hex(), b.hex())
    assert difference == relative(b.hex(), a.hex())
    assert (difference == 0.0) == (a == b) or difference < 1e-300
    assert 0.0 <= difference <= 2.0 or math.isinf(difference)
