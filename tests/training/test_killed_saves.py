"""Promise 4 under kill -9 of a rank, at any moment of a save: published checkpoints restore exactly."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.records import codec
from m5ws.records.determinism import environment
from m5ws.records.environment import Determinism
from m5ws.records.ledger import CheckpointPublished, State, Step
from m5ws.records.run import LaunchSpec
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.ranks.warm import Warm

_SCRIPT = Path(__file__).parent / "scripts" / "killed_ranks.py"
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


class _Ended(msgspec.Struct):
    statuses: list[int]
    seconds: float


class _Count(msgspec.Struct):
    of_rank: list[int]
    saving: int = 0
    runs: int = 0


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warm]:
    for name, value in {**environment(Determinism()), "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    with Warm(_SCRIPT) as parent:
        yield parent


class _Runs:
    """Runs of a tiny training that are killed and resumed, compared with an uninterrupted run."""

    def __init__(self, runner: Any, warm: Warm, tiny: str) -> None:
        self._runner = runner
        self._warm = warm
        self._command = (tiny, "fsdp", str(_STEPS))
        self._spec = LaunchSpec(command=self._command, nproc=_RANKS, seed=11, checkpoint_every=1)
        self.step_s = 0.0
        ended, self.whole = self.attempt(None)
        assert ended.statuses == [0] * _RANKS, self.whole.log()
        assert sorted(self.whole.contents) == list(range(1, _STEPS + 1))
        self.usual_s = ended.seconds
        self.learn(ended, self.whole)

    def learn(self, ended: _Ended, left: Any) -> None:
        """Measure the time of a step now: other work on the machine varies."""
        self.step_s = ended.seconds / max(1, len(left.steps(0)))

    def attempt(self, victim: int | None, moment_s: float = -1.0, linger_s: float = 0.0) -> tuple[_Ended, Any]:
        """Run the next attempt, from the newest valid checkpoint; return its end and its results."""
        repo, run = self._runner.repo, self._runner.run
        newest = checkpoints.valid(repo, run)[-1:]
        resume = checkpoints.digest(repo, run, newest[0]) if newest else None
        orders, directory = self._runner.context(self._spec, resume)
        (directory / "context").write_bytes(codec.encode(orders))
        arguments = (directory / "context", directory, _RANKS, victim or 0, moment_s, linger_s, *self._command)
        said = self._warm.run("attempt", *arguments).said
        return msgspec.json.decode(said, type=_Ended), self._runner.left(directory)

    def next(self) -> None:
        """Begin a run that was not killed yet."""
        self._runner.run = f"{int(self._runner.run, 16) + 1:012x}"
        self._runner.attempts = 0

    def judge(self, left: Any) -> None:
        """Compare an attempt's records, and every valid checkpoint, with the run that was not killed."""
        for rank in range(_RANKS):
            assert left.steps(rank).items() <= self.whole.steps(rank).items()
            assert left.states(rank).items() <= self.whole.states(rank).items()
        for name in checkpoints.valid(self._runner.repo, self._runner.run):
            content = checkpoints.load(self._runner.repo, self._runner.run, name).content
            assert content == self.whole.contents[checkpoints.step_of(name)], name

    def finished(self) -> bool:
        return [checkpoints.step_of(name) for name in checkpoints.valid(self._runner.repo, self._runner.run)][-1:] == [
            _STEPS
        ]

    def check_store(self) -> None:
        """Read every byte; the runner publishes neither the runs nor the observed environment."""
        report = fsck.check(self._runner.repo, read_data=True)
        assert [one for one in report.damage if one.key.startswith("objects/") and "0" * 64 not in one.key] == []


def _one_run(runs: _Runs, draw: random.Random, count: _Count, limit: int) -> None:
    """Kill a run's attempts, each at its own moment, until the run is done or `limit` kills are counted."""
    runs.next()
    count.runs += 1
    while sum(count.of_rank) < limit and not runs.finished():
        victim = draw.randrange(_RANKS)
        moment_s = draw.uniform(0, _SPAN_STEPS * runs.step_s)
        ended, left = runs.attempt(victim, moment_s, draw.uniform(0, _LINGER_S))
        runs.judge(left)
        runs.learn(ended, left)
        if ended.statuses[victim] != -signal.SIGKILL:
            assert ended.statuses[victim] == 0, left.log(victim)
            continue
        count.of_rank[victim] += 1
        count.saving += _was_saving(left)
    if not runs.finished():
        ended, left = runs.attempt(None)
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
    runs = _Runs(runner, warm, tiny)
    while sum(count.of_rank) < scale.kills:
        _one_run(runs, draw, count, scale.kills)
        runs.check_store()
        counts = (sum(count.of_rank), *count.of_rank, count.saving, count.runs)
        times = (f"{runs.usual_s * 1000:,.0f} ms", f"{time.monotonic() - began_s:,.0f}")
        print(row := "| " + " | ".join(map(str, (_RANKS, _STEPS, seed, *counts, *times))) + " |")
        if scale.soak:
            soak_page.put("saves", _HEADER, row)
