"""Slow ranks: named with the phase that differs in simulated and in real trainings, and no report in healthy hours."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from m5ws.agent import sampler
from m5ws.agent.sampler import Sampler
from m5ws.supervision.progress import Waiting
from m5ws.supervision.slow_ranks import Phase, SlowRanks
from tests.support.workspace.workspaces import SCRIPTS

_PHASES: tuple[Phase, ...] = ("data", "compute", "collective")
_NAMES = {"data": "% of its time in its data", "compute": "% of its time in its computation"}
_SAMPLES_AN_HOUR = 180
_SECONDS = 180
_HEALTHY = 90
"""Samples of a training without a slow rank."""


def _draw(draw: random.Random, weights: Mapping[Phase, float]) -> Phase:
    return draw.choices(_PHASES, [weights[phase] for phase in _PHASES])[0]


def _weights(draw: random.Random) -> dict[Phase, float]:
    """Return the parts of a healthy rank's time, between none and nearly all for each phase."""
    parts = [draw.random() ** 3 + 0.001 for _ in _PHASES]
    return {phase: part / sum(parts) for phase, part in zip(_PHASES, parts, strict=True)}


def _healthy_hours(draw: random.Random, hours: int) -> list[str]:
    """Sample ranks with equal work. Rank 0 also writes logs; the work drifts, and steps are of random length."""
    ranks, found, watch = range(draw.choice([2, 3, 4, 8])), list[str](), SlowRanks("n1")
    are_free = draw.random() < 0.2
    done = dict.fromkeys(ranks, 0.0)
    weights, usual = _weights(draw), 10 ** draw.uniform(0, 2.5)
    logs = draw.uniform(0, 0.05)
    for number in range(hours * _SAMPLES_AN_HOUR):
        if number % draw.randint(50, 500) == 0:
            weights = _weights(draw)
        drawn = {rank: _draw(draw, weights) for rank in ranks}
        if draw.random() < logs:
            drawn = {rank: "collective" if rank else "compute" for rank in ranks}
        # Ranks do not wait, or all complete the same number of steps but for one.
        common = 1 + draw.expovariate(1 / usual)
        done = {rank: each + (1 + draw.expovariate(1 / usual) if are_free else common) for rank, each in done.items()}
        found += watch.add(drawn, {rank: int(each) + draw.randint(0, 1) for rank, each in done.items()})
    return found


@pytest.mark.parametrize("seed", range(5))
def test_healthy_hours_have_no_report(seed: int) -> None:
    assert _healthy_hours(random.Random(seed), hours=8) == []


@pytest.mark.soak
def test_a_thousand_healthy_hours_have_no_report() -> None:
    for seed in range(100):
        assert _healthy_hours(random.Random(1000 + seed), hours=10) == [], seed


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("phase", ["data", "compute"])
@pytest.mark.parametrize("lost", [0.3, 0.5])
def test_a_rank_that_waits_less_is_named_once_with_its_phase(world: int, phase: Phase, lost: float) -> None:
    draw, watch, found = random.Random(world), SlowRanks("n1"), list[str]()
    usual: dict[Phase, float] = {"data": 0.1, "compute": 0.3, "collective": 0.6}
    slow = usual | {phase: usual[phase] + lost, "collective": usual["collective"] - lost}
    for step in range(1, 361):
        drawn = {rank: _draw(draw, slow if rank == 1 else usual) for rank in range(world)}
        found += watch.add(drawn, dict.fromkeys(range(world), step))
    [sentence] = found
    assert sentence.startswith("rank 1 on n1 is slower than the other ranks of the node: it spends ")
    assert _NAMES[phase] in sentence


def test_a_rank_with_faster_data_is_not_slow() -> None:
    draw, watch = random.Random(1), SlowRanks("n1")
    usual: dict[Phase, float] = {"data": 0.5, "compute": 0.5, "collective": 0.0}
    fast: dict[Phase, float] = {"data": 0.0, "compute": 1.0, "collective": 0.0}
    for step in range(1, 361):
        drawn = {rank: _draw(draw, usual if rank else fast) for rank in range(4)}
        assert watch.add(drawn, dict.fromkeys(range(4), step)) == []


def test_ranks_that_do_not_wait_are_compared_by_their_steps() -> None:
    watch, found = SlowRanks("n1"), list[str]()
    phases: dict[int, Phase] = {0: "compute", 1: "compute", 2: "compute"}
    for number in range(1, 121):
        found += watch.add(phases, {0: 20 * number, 1: 20 * number, 2: 15 * number})
    [sentence] = found
    assert sentence.startswith("rank 2 on n1 ")
    assert sentence.endswith("of the node: it completed 885 steps, and other ranks 1,180")


def test_a_rank_that_ends_begins_the_samples_again() -> None:
    watch = SlowRanks("n1")
    for step in range(1, 120):
        watch.add({0: "data", 1: "collective", 2: "collective"}, {0: step, 1: step, 2: step})
    assert watch.add({0: "data", 1: "collective"}, {0: 120, 1: 120}) == []


@pytest.fixture
def trained(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, int]]:
    """The pids of the ranks of a real training without an end."""
    kind, culprit, world = request.param
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randint(20000, 30000)), "WORLD_SIZE": str(world)}
    command = [sys.executable, str(SCRIPTS / "slow.py"), kind, str(culprit), "1000000"]
    ranks = {
        str(rank): subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)}, cwd=tmp_path)
        for rank in range(world)
    }
    yield {rank: process.pid for rank, process in ranks.items()}
    for process in ranks.values():
        process.kill()
        process.wait()


@pytest.mark.soak
@pytest.mark.parametrize(
    "trained", [("data", 1, 2), ("compute", 0, 2), ("data", 0, 4), ("compute", 3, 4), ("none", 0, 4)], indirect=True
)
def test_the_slow_rank_of_a_real_training_is_named(
    trained: dict[str, int], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, culprit, _ = request.node.callspec.params["trained"]
    monkeypatch.setattr(sampler, "_INTERVAL_S", 0.02)
    monkeypatch.setattr(sampler, "_REST", 0)
    time.sleep(8)  # The ranks import torch.
    watch, found, end_s, step = Sampler(str(SCRIPTS)), list[str](), time.monotonic() + _SECONDS, 0
    while not found and time.monotonic() < end_s and not (kind == "none" and watch._slow._number >= _HEALTHY):
        step += 1
        waiting = Waiting(step=step, phase="step", waited_s=0.0, limit_s=60.0)
        found = watch.look(dict.fromkeys(trained, waiting), trained)
        time.sleep(0.01)
    if kind == "none":
        assert found == []
    else:
        [sentence] = found
        assert sentence.startswith(f"rank {culprit} on ") and _NAMES[kind] in sentence
