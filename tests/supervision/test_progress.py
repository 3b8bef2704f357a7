"""The watch of progress: no false alarm in healthy hours, and each stop is found within twice its limit."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.config.settings import StuckSettings
from m5ws.records.ledger import AnyEvent, Phase, RankEnded, RankStarted, Step
from m5ws.supervision.progress import Progress

LIMITS = StuckSettings(floor_s=60, ceiling_s=1800)
STARTED = RankStarted(rank=0, world=1, pid=1)
LOOP = Phase(rank=0, step=0, name="step")


class _Clock(msgspec.Struct):
    """The looks of a watcher at one rank, once a second; `late` has the times of its alarms."""

    progress: Progress
    now_s: float = 0.0
    late: list[float] = []

    def take(self, event: AnyEvent) -> None:
        self.progress.take("0", event, self.now_s)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look in each second."""
        for _ in range(int(seconds)):
            self.now_s += 1
            self.look()
        self.now_s += seconds % 1

    def look(self) -> None:
        if any(waiting.is_late for waiting in self.progress.look(self.now_s).values()):
            self.late.append(self.now_s)


def _clock(limits: StuckSettings = LIMITS) -> _Clock:
    clock = _Clock(progress=Progress(limits))
    clock.take(STARTED)
    return clock


def _step(number: int) -> Step:
    return Step(step=number, quantities={})


def _healthy_hours(clock: _Clock, draw: random.Random, hours: float) -> Iterator[str]:
    """Train with steps and saves within the promise, and yield the phases of the training in their order.

    The promise: after five steps, no step and no save takes longer than five times the longest before it, or a minute.
    """
    yield "start"
    clock.wait(draw.uniform(1, 1700))
    clock.take(LOOP)
    yield "first step"
    clock.wait(draw.uniform(1, 1700))
    longest, usual, number = 0.0, 10 ** draw.uniform(-0.3, 2.2), 0
    while clock.now_s < 3600 * hours:
        number += 1
        clock.take(_step(number))
        yield "step"
        seconds = min(usual * draw.choice([1, 1, 1, 1, 1.3, 4.9]), max(4.9 * longest, 59.0) if number > 5 else 1700)
        clock.wait(seconds)
        longest = max(longest, seconds if number > 5 else 0.0)
        if draw.random() < 0.02:
            name, most_s = draw.choice([("save", 59.0), ("evaluation", 1500.0), ("sleep", 8 * 3600.0)])
            yield name
            if name == "sleep":
                clock.now_s += draw.uniform(6, most_s)
                clock.look()
                continue
            clock.take(Phase(rank=0, step=number, name=name))
            clock.wait(most_s if name == "evaluation" else draw.uniform(0, most_s))
            clock.take(Phase(rank=0, step=number, name="step"))


@pytest.mark.parametrize("seed", range(10))
def test_healthy_hours_have_no_alarm(seed: int) -> None:
    clock = _clock()
    phases = set(_healthy_hours(clock, random.Random(seed), hours=4))
    assert not clock.late
    assert {"start", "first step", "step"} <= phases


@pytest.mark.soak
def test_a_thousand_healthy_hours_have_no_alarm() -> None:
    phases = set[str]()
    for seed in range(100):
        clock = _clock()
        phases.update(_healthy_hours(clock, random.Random(1000 + seed), hours=10))
        assert not clock.late, seed
    assert phases == {"start", "first step", "step", "save", "evaluation", "sleep"}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 400))
def test_a_stop_is_found_within_twice_the_limit(seed: int, events: int) -> None:
    clock = _clock()
    hours = _healthy_hours(clock, random.Random(seed), hours=2)
    for _ in range(events + 1):
        next(hours, None)
    [before] = clock.progress.look(clock.now_s).values()
    assert not clock.late
    clock.wait(2 * before.limit_s)
    assert clock.late, before


def test_a_limit_is_learnt_after_the_warm_up_and_stays_between_floor_and_ceiling() -> None:
    clock = _clock()
    clock.take(LOOP)
    for number, seconds in enumerate((500, 1, 1, 1, 1, 30, 1), 1):
        clock.wait(seconds)
        assert clock.progress.look(clock.now_s)["0"].limit_s == (1800 if number < 7 else 150)
        clock.take(_step(number))
    clock.wait(700)
    clock.take(_step(8))
    assert clock.progress.look(clock.now_s)["0"].limit_s == 1800


def test_a_phase_with_an_evaluation_inside_has_the_limit_of_its_own_name() -> None:
    clock = _clock()
    for name in ("step", "evaluation", "validation", "evaluation", "step", "evaluation"):
        clock.wait(20)
        clock.take(Phase(rank=0, step=0, name=name))
    waiting = clock.progress.look(clock.now_s)["0"]
    assert (waiting.phase, waiting.limit_s) == ("evaluation", 100)


def test_a_rank_that_has_ended_is_late_only_if_its_process_hangs_for_the_ceiling() -> None:
    clock = _clock()
    clock.take(RankEnded(rank=0))
    for _ in range(200):
        clock.wait(20)
        clock.progress.note_activity("0", "processor", clock.now_s)  # As the watcher does for a process that has ended.
    assert not clock.late
    clock.wait(1790)
    assert not clock.late
    clock.wait(20)
    assert clock.late


def test_a_rank_that_has_ended_does_not_change_the_limit_of_other_ranks() -> None:
    clock = _clock()
    clock.take(LOOP)
    for number in range(1, 9):
        clock.take(_step(number))
        clock.wait(1)
    clock.progress.take("1", STARTED, clock.now_s)
    clock.progress.take("1", RankEnded(rank=1), clock.now_s)
    assert {rank: each.limit_s for rank, each in clock.progress.look(clock.now_s).items()} == {"0": 60, "1": 1800}


ACTIVITY: Any = [
    ((), "processor", False),
    ((), "output", False),
    ((_step(1),), "processor", True),
    ((_step(1),), "output", False),
    ((LOOP,), "processor", True),
    ((LOOP, _step(1)), "output", True),
    ((LOOP, _step(1), Phase(rank=0, step=1, name="end")), "processor", False),
]


@pytest.mark.parametrize(("events", "kind", "is_late"), ACTIVITY)
def test_activity_is_progress_only_where_no_steps_are_expected(
    events: tuple[AnyEvent, ...], kind: Any, is_late: bool
) -> None:
    clock = _clock()
    for event in events:
        clock.take(event)
    for _ in range(40):
        clock.wait(60)
        clock.progress.note_activity("0", kind, clock.now_s)
    assert bool(clock.late) == is_late


def _stepping(limits: StuckSettings, ranks: int = 1) -> Progress:
    """Return the progress of ranks after ten steps of a second."""
    progress = Progress(limits)
    for rank in range(ranks):
        progress.take(f"{rank}", STARTED, 0)
        progress.take(f"{rank}", LOOP, 0)
        for number in range(1, 11):
            progress.take(f"{rank}", _step(number), number)
    return progress


@pytest.mark.parametrize(("name", "limit_s"), [(None, 1800), ("save", 1800), ("load", 1800), ("evaluation", 300)])
def test_the_limit_of_a_step_is_learnt_after_the_script_has_named_a_phase(name: str | None, limit_s: int) -> None:
    progress = _stepping(StuckSettings())
    for phase in (name, "step") if name else ():
        progress.take("0", Phase(rank=0, step=10, name=phase), 11)
    assert progress.look(12)["0"].limit_s == limit_s


def test_a_rank_that_waits_for_the_evaluation_of_another_rank_is_not_late() -> None:
    progress = _stepping(LIMITS, ranks=2)
    assert progress.look(11)["1"].limit_s == 60
    progress.take("0", Phase(rank=0, step=10, name="evaluation"), 11)
    assert progress.look(12)["1"].limit_s == 1800
