"""Promise 4 under kill -9 of a rank, at any moment of a save: published checkpoints restore exactly."""

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.records.ledger import CheckpointPublished, State, Step
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.ranks.forked_attempts import SCRIPT, ForkedAttempts
from tests.support.ranks.warm import Warm

_RANKS = 2
_STEPS = 12
_SPAN_STEPS = 4
"""A rank is killed within about this number of steps, so that a run is killed several times before its end."""
_LINGER_S = 0.3
_HEADER = (
    (
        "| ranks | checkpoints of a run | seed | kills | of rank 0 | of rank 1 | while a save was under way | runs |"
        " a whole run, undisturbed | seconds |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|",
)


class _Count(msgspec.Struct):
    of_rank: list[int]
    saving: int = 0
    runs: int = 0


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    for name, value in {**environment(Determinism()), "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    with Warm(SCRIPT) as parent:
        yield parent


def _one_run(runs: ForkedAttempts, draw: random.Random, count: _Count, limit: int) -> None:
    """Kill a run's attempts, each at its own moment, until the run is done or `limit` kills are counted."""
    runs.next()
    count.runs += 1
    while sum(count.of_rank) < limit and not runs.finished():
        victim = draw.randrange(_RANKS)
        moment_s = draw.uniform(0, _SPAN_STEPS * runs.step_s)
        others_s = moment_s + draw.uniform(0, _LINGER_S)
        others = [(others_s, rank, int(signal.SIGKILL)) for rank in range(_RANKS)]
        ended, left = runs.attempt([(moment_s, victim, int(signal.SIGKILL)), *others])
        runs.judge(left)
        runs.learn(ended, left)
        if ended.statuses[victim] != -signal.SIGKILL:
            assert ended.statuses[victim] == 0, left.log(victim)
            continue
        count.of_rank[victim] += 1
        count.saving += _was_saving(left)
    if not runs.finished():
        ended, left = runs.attempt(())
        assert ended.statuses == [0] * _RANKS, left.log()
        runs.judge(left)
    assert runs.finished()


def _was_saving(left: Any) -> bool:
    """Return True if rank 0's last fingerprinted step has no published checkpoint: a save was running."""
    states = [event.step for event in left.of(State) if not event.restored and event.step]
    published = [event.step for event in left.of(CheckpointPublished)]
    steps = [event.step for event in left.of(Step)]
    return bool(steps) and max(published, default=0) < max(*steps, *(states or [0]))


_SCALES = [
    pytest.param(Scale(4), marks=pytest.mark.long),
    pytest.param(Scale(200, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
]


@pytest.mark.parametrize("scale", _SCALES)
def test_kills_of_a_rank_during_saves_leave_a_correct_store(runner: Any, warm: Warm, tiny: str, scale: Scale) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    draw, count = random.Random(seed), _Count([0] * _RANKS)
    runs = ForkedAttempts(runner, warm, tiny, ranks=_RANKS, steps=_STEPS, checkpoint_every=1)
    assert sorted(runs.whole.contents) == list(range(1, _STEPS + 1))
    while sum(count.of_rank) < scale.kills:
        _one_run(runs, draw, count, scale.kills)
        runs.check_store()
        counts = (sum(count.of_rank), *count.of_rank, count.saving, count.runs)
        times = (f"{runs.usual_s * 1000:,.0f} ms", f"{time.monotonic() - began_s:,.0f}")
        print(row := "| " + " | ".join(map(str, (_RANKS, _STEPS, seed, *counts, *times))) + " |")
        if scale.soak:
            soak_page.put("saves", _HEADER, row)
