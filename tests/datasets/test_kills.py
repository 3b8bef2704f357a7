"""Kills at random moments, and other numbers of ranks and workers after each: one sequence, each sample once an epoch.

Ranks are real processes with real workers. All are killed at once by SIGKILL; the next attempt continues from the
newest position that all ranks have reached.
"""

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.datasets import mixture
from tests.support.campaigns import soak_page

_STEPS = 120
_WORLDS = (1, 2, 3, 4, 8)
_HEADER = (
    "| seed | kills | ended before | trainings | attempts | steps compared | samples compared | seconds |",
    "|---|---|---|---|---|---|---|---|",
)


@pytest.mark.parametrize(
    "kills", [pytest.param(6, id="short"), pytest.param(500, marks=pytest.mark.soak, id="campaign")]
)
def test_killed_loaders_continue_the_sequence(kills: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--campaign-count") or kills
    seed = request.config.getoption("--campaign-seed") or (7 if kills < 100 else random.SystemRandom().randrange(10**6))
    campaign = _Campaign(tmp_path, seed)
    while campaign.kills < count:
        campaign.train()
    print(row := campaign.row())
    if kills >= 100:
        soak_page.put("loader-kills", _HEADER, row)


class _Campaign:
    """Trainings one after another, each with an order of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self._draw = folder, seed, random.Random(seed)
        self._began_s = time.monotonic()
        self._usual_s = 1.0
        self.kills = self.early = self.trainings = self.attempts = self.steps = self.samples = 0
        mixture.write(folder)

    def train(self) -> None:
        """Train to the end, with a kill in each attempt but the last."""
        order = self._draw.randrange(10**6)
        expected, reference = list[Any](), mixture.expected(order)
        position: Any = None
        done = 0
        while done < _STEPS:
            for _ in range(_STEPS - len(expected)):
                expected.append(next(reference))
            steps, states = self._attempt(order, position)
            for number, samples in enumerate(steps, start=done):
                assert samples == expected[number], (self._seed, order, number)
            if steps:
                done, position = done + len(steps), states[-1]
            self.steps += len(steps)
            self.samples += sum(map(len, steps))
        assert done == _STEPS
        self.trainings += 1

    def _attempt(self, order: int, position: Any) -> tuple[list[Any], list[Any]]:
        """Return the samples of each step that all ranks did, and the position after it."""
        world, workers = self._draw.choice(_WORLDS), self._draw.randrange(5)
        # Eight ranks with four workers each would measure the machine.
        workers = min(workers, 8 // world)
        logs = [self._folder / f"{self.attempts}-{rank}.log" for rank in range(world)]
        began_s = time.monotonic()
        ranks = [self._fork(log, order, position, rank, world, workers) for rank, log in enumerate(logs)]
        self.attempts += 1
        killed = self._end(ranks, self._draw.uniform(0, 1.2 * self._usual_s))
        self.kills += killed
        self.early += not killed
        if not killed:
            self._usual_s = time.monotonic() - began_s
        read = [list(_read(log)) for log in logs]
        assert killed or all(rank and rank[-1]["state"]["samples"] == _STEPS * mixture.BATCH for rank in read)
        steps = [[sample for item in step for sample in item["samples"]] for step in zip(*read, strict=False)]
        states = [[item["state"] for item in step] for step in zip(*read, strict=False)]
        assert all(state == step[0] for step in states for state in step), "the position differs between ranks"
        return steps, [step[0] for step in states]

    def _end(self, ranks: list[int], moment_s: float) -> bool:
        """Kill all ranks and their workers at a moment; return False if the ranks had ended before."""
        end_s = time.monotonic() + moment_s
        left = set(ranks)
        while left and time.monotonic() < end_s:
            for pid in list(left):
                if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    assert ended[1] == 0, "a rank failed"
                    left.discard(pid)
            time.sleep(0.002)
        for pid in left:
            os.killpg(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
        return bool(left)

    def _fork(self, log: Path, order: int, position: Any, rank: int, world: int, workers: int) -> int:
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)
            return pid
        status = 1
        try:
            loader = mixture.loader(self._folder, rank, world, workers, order)
            if position is not None:
                loader.load_state_dict(position)
            with log.open("w") as file:
                while loader.state_dict()["samples"] < _STEPS * mixture.BATCH:
                    samples = [mixture.plain(sample) for sample in next(loader)]
                    print(json.dumps({"samples": samples, "state": loader.state_dict()}), file=file, flush=True)
            status = 0
        except BaseException:  # noqa: BLE001  # a process of its own
            traceback.print_exc()
        finally:
            os._exit(status)

    def row(self) -> str:
        """Return the line of the table."""
        counts = (self.kills, self.early, self.trainings, self.attempts, self.steps, self.samples)
        cells = (self._seed, *(f"{count:,}" for count in counts), f"{time.monotonic() - self._began_s:,.0f}")
        return "| " + " | ".join(map(str, cells)) + " |"


def _read(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a rank's log; the process may have been killed inside a line."""
    for line in log.read_text().splitlines(keepends=True) if log.exists() else ():
        if line.endswith("\n"):
            yield json.loads(line)
