"""Signals to any ranks, at any moments: all ranks end after one step, with one checkpoint, and resume exactly."""

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.records.launch import STOP_SIGNALS, WARNINGS
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.ranks.forked_attempts import SCRIPT, ForkedAttempts, Signal
from tests.support.ranks.warm import Warm

_RANKS = 4
_STEPS = 120
_NEVER = 10**6
_SPAN_S = 1.5
"""Signals come within this time after the first step, and ranks agree about once a second of steps."""
_HEADER = (
    "| ranks | steps of a run | seed | stops | to one rank | to some | to all | runs | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)


class _Count(msgspec.Struct):
    stops: int = 0
    one: int = 0
    all: int = 0
    runs: int = 0


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    for name, value in {**environment(Determinism()), "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    with Warm(SCRIPT) as parent:
        yield parent


def _draw(draw: random.Random) -> list[Signal]:
    """Return signals to a subset of the ranks, of one kind or of several, together or apart."""
    subset = draw.sample(range(_RANKS), draw.randint(1, _RANKS))
    moment_s, spread_s = draw.uniform(0, _SPAN_S), draw.choice((0.0, 0.1, 1.0))
    kinds = draw.sample(sorted(STOP_SIGNALS), draw.randint(1, 2))
    return [(moment_s + draw.uniform(0, spread_s), rank, int(draw.choice(kinds))) for rank in subset]


def _stop(runs: ForkedAttempts, signals: list[Signal], count: _Count) -> None:
    """Stop one attempt, and judge its end."""
    before = runs.published()
    ended, left = runs.attempt(signals)
    runs.judge(left)
    last = {max(left.steps(rank), default=0) for rank in range(_RANKS)}
    assert len(last) == 1, f"ranks ended after the steps {last}, by {signals}"
    assert runs.published() == [*before, *last], f"by {signals}"
    if last == {_STEPS}:
        # All is done. After its session, a rank has Python's own handlers until its script ends.
        for rank, status in enumerate(ended.statuses):
            got = {number for _, victim, number in signals if victim == rank} - {*WARNINGS}
            stopped = {*(-number for number in got), *(128 + number for number in got)}
            assert status in {0, *stopped}, (ended.statuses, signals, left.log())
        return
    assert all(status and status != -signal.SIGKILL for status in ended.statuses), (ended.statuses, left.log())
    victims = len({rank for _, rank, _ in signals})
    count.stops += 1
    count.one += victims == 1
    count.all += victims == _RANKS


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(Scale(1), marks=pytest.mark.long),
        pytest.param(Scale(200, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_signals_to_any_ranks_end_all_after_one_step_with_one_checkpoint(
    runner: Any, warm: Warm, tiny: str, scale: Scale
) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    draw, count = random.Random(seed), _Count()
    runs = ForkedAttempts(runner, warm, tiny, ranks=_RANKS, steps=_STEPS, checkpoint_every=_NEVER)
    while count.stops < scale.kills:
        runs.next()
        count.runs += 1
        while count.stops < scale.kills and not runs.finished():
            _stop(runs, _draw(draw), count)
        runs.check_store()
        some = count.stops - count.one - count.all
        cells = (_RANKS, _STEPS, seed, count.stops, count.one, some, count.all, count.runs)
        print(row := "| " + " | ".join(map(str, (*cells, f"{time.monotonic() - began_s:,.0f}"))) + " |")
        if scale.soak:
            soak_page.put("stops", _HEADER, row)
