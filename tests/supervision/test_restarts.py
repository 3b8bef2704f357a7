"""Rules of restarts on drawn histories: each run below begins attempts for as long as the rule restarts it."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.config.settings import RestartSettings
from m5ws.supervision import restarts
from m5ws.supervision.restarts import Cause, Decision, PastAttempt

_CAUSES = [
    Cause(name="segmentation-fault", owner="platform", retry=True),
    Cause(name="unknown, train.py:8", owner="user", retry=True),
    Cause(name="unknown, rank 3 with status -9", owner="user", retry=True),
    Cause(name="node lost", owner="infrastructure", retry=True),
    Cause(name="io-error", owner="storage", retry=True),
    Cause(name="disk-full", owner="storage", retry=False),
]
_SOFTWARE = {cause.name for cause in _CAUSES if cause.owner in ("user", "platform")}
_FAILED = st.builds(
    PastAttempt,
    end=st.sampled_from(["ranks failed", "status", "stuck", "node lost"]),
    cause=st.sampled_from(_CAUSES),
    advanced=st.booleans(),
)
_SETTINGS = st.builds(RestartSettings, max=st.integers(1, 4), same_cause=st.integers(0, 3))


def _run(attempts: list[PastAttempt], settings: RestartSettings) -> tuple[list[PastAttempt], Decision]:
    """Return the attempts that a run begins, if its attempts end as listed, and the last decision."""
    begun: list[PastAttempt] = []
    for attempt in attempts:
        begun.append(attempt)
        decision = restarts.decide(begun, settings)
        if not decision.again:
            break
    return begun, decision


@given(attempts=st.lists(_FAILED, min_size=1, max_size=30), settings=_SETTINGS)
def test_a_run_never_exceeds_a_limit(attempts: list[PastAttempt], settings: RestartSettings) -> None:
    begun, _ = _run(attempts, settings)
    assert all(attempt.cause is not None and attempt.cause.retry for attempt in begun[:-1])
    standstill = [len(list(each)) for advanced, each in groupby(begun[1:], lambda own: own.advanced) if not advanced]
    assert max(standstill, default=0) <= settings.max
    rows = [(name, len(list(each))) for name, each in groupby(begun, lambda own: own.cause and own.cause.name)]
    assert all(count <= settings.same_cause + 2 for name, count in rows if name in _SOFTWARE)


@given(attempts=st.lists(_FAILED, min_size=1, max_size=30), settings=_SETTINGS)
def test_older_attempts_than_the_decisive_attempts_change_nothing(
    attempts: list[PastAttempt], settings: RestartSettings
) -> None:
    begun, decision = _run(attempts, settings)
    assert restarts.decide(begun[-restarts.enough_failures(settings) :], settings) == decision


@pytest.mark.parametrize(
    ("cause", "advanced", "expected"),
    [
        ("segmentation-fault", True, 3),
        ("unknown, train.py:8", True, 3),
        ("segmentation-fault", False, 3),
        ("node lost", True, 400),
        ("node lost", False, 3),
        ("disk-full", True, 1),
    ],
)
def test_one_cause_in_each_attempt_ends_a_run(cause: str, expected: int, *, advanced: bool) -> None:
    own = next(each for each in _CAUSES if each.name == cause)
    attempt = PastAttempt(end="ranks failed", cause=own, advanced=advanced)
    assert len(_run([attempt] * 400, RestartSettings(max=3))[0]) == expected


def test_causes_in_turn_end_a_run_that_does_not_advance() -> None:
    attempts = [PastAttempt(end="status", cause=_CAUSES[number % 2]) for number in range(20)]
    begun, decision = _run(attempts, RestartSettings(max=3))
    assert len(begun) == 4
    assert decision == Decision(again=False, reason="3 restarts brought no checkpoint forward")


def test_an_attempt_that_its_scheduler_ended_is_no_failure() -> None:
    failed, warned = PastAttempt(end="status", cause=_CAUSES[0], advanced=True), PastAttempt(end="stopped")
    settings = RestartSettings(max=1)
    assert restarts.decide([warned, warned, failed, warned, failed], settings).again
    assert not restarts.decide([failed, warned, failed, warned, failed], settings).again


@pytest.mark.parametrize(
    "end",
    ["not launched", "fork not restored", "supervisor killed", "inexact resume", "wrong network", "outputs conflict",
     "unsaved", "cancelled", "removed", "superseded", "stopped", "enough steps", "killed for a test", "loss"],
)  # fmt: skip
def test_an_end_that_no_restart_heals_is_final(end: str) -> None:
    assert not restarts.decide([PastAttempt(end=end, cause=_CAUSES[0])], RestartSettings(max=3)).again
