"""Fingerprints of the state between checkpoints: by their cost, or where a replay's original made them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import m5ws
from m5ws.records.ledger import State
from m5ws.training.session.schedules import SHARE, FingerprintSchedule, interval
from tests.support.ranks.loops import train

_DURATIONS = st.floats(1e-5, 1e3)


def fingerprinted(schedule: FingerprintSchedule, steps: range, step_s: float, fingerprint_s: float) -> list[int]:
    """Return the steps after which a training fingerprints its state, with all steps and fingerprints equally long."""
    found = []
    schedule.begin(steps.start)
    for step in steps:
        schedule.done(step_s)
        if schedule.is_due(step):
            found.append(step)
            schedule.fingerprinted(step, fingerprint_s)
    return found


@given(step_s=_DURATIONS, fingerprint_s=_DURATIONS, first=st.integers(1, 5000), count=st.integers(3, 5000))
def test_fingerprints_take_at_most_a_fixed_share_of_step_time(
    step_s: float, fingerprint_s: float, first: int, count: int
) -> None:
    steps = range(first, first + count)
    found = fingerprinted(FingerprintSchedule(None, None, None), steps, step_s, fingerprint_s)
    assert found[0] == first + 2
    # The first fingerprint measures the cost, and the second may follow it at once.
    rest = found[2:]
    assert len(rest) * fingerprint_s <= SHARE * count * step_s * (1 + 1e-9)
    assert len(rest) <= 1000 + count / 10


@given(_DURATIONS, _DURATIONS, _DURATIONS, st.integers(0, 10_000))
def test_trainings_of_different_speed_have_common_fingerprints(
    one_s: float, other_s: float, fingerprint_s: float, step: int
) -> None:
    shorter, longer = sorted((interval(step, one_s, fingerprint_s), interval(step, other_s, fingerprint_s)))
    assert longer % shorter == 0


def test_a_cost_that_changes_changes_the_interval() -> None:
    schedule = FingerprintSchedule(None, None, None)
    slow = fingerprinted(schedule, range(1, 1001), 10.0, 0.04)
    assert slow == list(range(3, 1001))
    quick = fingerprinted(schedule, range(1001, 4001), 0.01, 0.04)
    assert len(quick) < 20 and quick[-3:] == [2000, 3000, 4000]


def test_checkpoints_count_as_fingerprints() -> None:
    schedule = FingerprintSchedule(None, None, None)
    schedule.begin(1)
    schedule.done(1.0)
    schedule.checkpointed(3)
    assert not schedule.is_due(3) and schedule.is_due(4)
    schedule.fingerprinted(4, 0.05)
    assert not schedule.is_due(9) and schedule.is_due(10)
    schedule.checkpointed(10)
    assert not schedule.is_due(19) and schedule.is_due(20)


def states(attempt: Any) -> list[int]:
    return sorted(event.step for event in attempt.of(State))


def test_a_replay_fingerprints_the_steps_of_its_original(in_process: Any) -> None:
    attempt, _ = in_process(train(8, 4), fingerprint_at=(1, 4, 6))
    assert states(attempt) == [0, 1, 4, 6, 8]


@pytest.mark.parametrize(("every", "expected"), [(0, [0, 6]), (1, [0, 1, 2, 3, 4, 5, 6]), (4, [0, 4, 6])])
def test_a_script_chooses_the_interval(in_process: Any, every: int, expected: list[int]) -> None:
    import torch

    def script() -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in m5ws.session(model, optimizer, total_steps=6, fingerprint_every=every).steps():
            model(torch.ones(2)).sum().backward()
            optimizer.step()

    attempt, error = in_process(script)
    assert error is None
    assert states(attempt) == expected
