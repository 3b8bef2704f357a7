"""Planted faults: each is located, its cause is named, and unchanged runs raise no alarm."""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from m5ws.errors import M5Error
from tests.support.campaigns import soak_page
from tests.support.faults.faulty_runs import STEPS, Runs, variables
from tests.support.faults.planted_faults import CAUSES, Said, judged, plant
from tests.support.ranks.forks import ForkParents

pytestmark = pytest.mark.long

_PARALLEL = 3
_HEADER = (
    (
        "| fault | seed | planted | beside a harmless change | found | in the right segment | at the right step |"
        " cause right | unknown | wrong | seconds |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
_UNTOUCHED = (
    (
        "| untouched | seed | runs | resumed in the middle | beside a harmless change | segments replayed |"
        " steps compared | false alarms | seconds |"
    ),
    "|---|---|---|---|---|---|---|---|---|",
)


class _Scale(msgspec.Struct, frozen=True):
    """The number of runs of each kind."""

    runs: int
    soak: bool = False
    kinds: tuple[str, ...] = tuple(CAUSES)

    def seed(self) -> int:
        return random.SystemRandom().randrange(10**6) if self.soak else 11


class _Count(msgspec.Struct):
    """The results of one kind."""

    beside: int = 0
    seconds: float = 0.0
    said: list[Said] = []

    def row(self, kind: str, seed: int) -> str:
        results = self.said
        cells: list[object] = [kind, seed, len(results), self.beside]
        cells += [sum(getattr(result, name) for result in results) for name in ("found", "segment", "step")]
        cells += [sum(result.cause == cause for result in results) for cause in ("right", "unknown", "wrong")]
        cells.append(f"{self.seconds:,.0f}")
        return "| " + " | ".join(map(str, cells)) + " |"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    environment = variables(tmp_path)
    # The environment has the distributions that this process can import.
    monkeypatch.setattr(sys, "path", [environment["SITE"], *sys.path])
    with ForkParents() as parents:
        yield Runs(tmp_path, parents, environment)


_SCALES = [
    _Scale(1, kinds=("bit of a weight", "library version")),
    pytest.param(_Scale(20, soak=True), marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)]),
]


@pytest.mark.parametrize("scale", _SCALES)
def test_a_planted_fault_is_found_in_its_step_with_only_recorded_causes(runs: Runs, scale: _Scale) -> None:
    seed = scale.seed()
    draw = random.Random(seed)
    counts = {kind: _Count(said=[]) for kind in scale.kinds}
    missed = []
    for _ in range(scale.runs):
        for kind, count in counts.items():
            result = _one(runs, kind, draw, count)
            if not (result.found and result.segment and result.step) or result.cause != "right":
                missed.append((kind, result))
                print(kind, result)
            print(row := count.row(kind, seed))
            if scale.soak:
                soak_page.put("planted", _HEADER, row)
    for kind, result in missed:
        assert result.found and result.segment and result.step, (kind, result)
    assert len(missed) <= scale.runs * len(scale.kinds) // 10, missed


def _one(runs: Runs, kind: str, draw: random.Random, count: _Count) -> Said:
    """Plant a fault, replay all segments, and return the result."""
    began_s = time.monotonic()
    beside = _beside(runs, draw)
    planted = plant(kind, runs, draw)
    if beside:
        runs.install("gauge", "1.1", "")
    result = judged(planted, runs.verify(planted.run, _PARALLEL))
    runs.restore()
    count.beside += beside
    count.said.append(result)
    count.seconds += time.monotonic() - began_s
    return result


def _beside(runs: Runs, draw: random.Random) -> bool:
    """Return True if the replays get another version of a library that the training does not use."""
    runs.restore()
    return draw.random() < 0.3


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("scale", [_Scale(200, soak=True)])
def test_all_untouched_runs_are_reproduced(runs: Runs, scale: _Scale) -> None:
    began_s, seed = time.monotonic(), scale.seed()
    draw = random.Random(seed)
    resumed = beside = replayed = steps = alarms = 0
    for number in range(1, scale.runs + 1):
        changed, stopped = _beside(runs, draw), number % 4 == 0
        nproc = 2 if draw.random() < 0.2 else 1
        attempts = [{"kind": "stop", "step": draw.randrange(2, STEPS)}, {}] if stopped else [{}]
        run = runs.train(*attempts, seed=draw.randrange(10**6), nproc=nproc)
        if changed:
            runs.install("gauge", "1.1", "")
        answer = runs.verify(run, _PARALLEL)
        alarms += isinstance(answer, M5Error) or answer.outcome != "reproduced"
        if not isinstance(answer, M5Error):
            replayed += len(answer.verdicts)
            steps += sum(verdict.compared.get("steps", 0) for verdict in answer.verdicts)
        resumed, beside = resumed + stopped, beside + changed
        cells = (number, resumed, beside, replayed, f"{steps:,}", alarms, f"{time.monotonic() - began_s:,.0f}")
        print(row := "| " + " | ".join(map(str, ("runs", seed, *cells))) + " |")
        if scale.soak:
            soak_page.put("untouched", _UNTOUCHED, row)
        assert alarms == 0, answer
