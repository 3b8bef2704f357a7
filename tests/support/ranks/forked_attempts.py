"""Attempts of a tiny training whose ranks get signals, compared with an undisturbed run."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from m5ws.records import codec
from m5ws.records.launch import Saving
from m5ws.records.run import LaunchSpec
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints
from tests.support.ranks.warm import Warm

SCRIPT = Path(__file__).parents[2] / "training" / "scripts" / "signalled_ranks.py"
Signal = tuple[float, int, int]
"""Seconds after the first step, a rank, and the number of the signal that it gets."""


class Ended(msgspec.Struct):
    """The statuses of the ranks, and the seconds from the first step to the end."""

    statuses: list[int]
    seconds: float


class ForkedAttempts:
    """Runs of a tiny FSDP training. `runner` begins and reads attempts (tests/training/conftest.py).

    With `nodes`, each rank has a folder of its own for copies of checkpoints, as on a node of its own.
    """

    def __init__(
        self,
        runner: Any,
        warm: Warm,
        tiny: str,
        *,
        ranks: int,
        steps: int,
        checkpoint_every: int,
        nodes: Sequence[Path] = (),
    ) -> None:
        self._runner = runner
        self._warm = warm
        self._command = (tiny, "fsdp", str(steps))
        self.ranks, self.steps = ranks, steps
        self._spec = LaunchSpec(
            command=self._command, nproc=ranks, seed=11, checkpoint_every=checkpoint_every, fingerprint_every=1
        )
        self._nodes = nodes
        self.step_s = 0.0
        ended, self.whole = self.attempt(())
        assert ended.statuses == [0] * ranks, self.whole.log()
        self.usual_s = ended.seconds
        self.learn(ended, self.whole)

    def learn(self, ended: Ended, left: Any) -> None:
        """Measure the time of a step now: other work on the machine varies."""
        self.step_s = ended.seconds / max(1, len(left.steps(0)))

    def attempt(self, signals: Iterable[Signal]) -> tuple[Ended, Any]:
        """Run the next attempt, from the newest valid checkpoint; return its end and its results."""
        repo, run = self._runner.repo, self._runner.run
        newest = checkpoints.valid(repo, run)[-1:]
        resume = checkpoints.digest(repo, run, newest[0]) if newest else None
        orders, directory = self._runner.context(self._spec, resume)
        (directory / "context").write_bytes(codec.encode(orders))
        for rank, node in enumerate(self._nodes):
            node.mkdir(exist_ok=True)
            own = msgspec.structs.replace(orders, local=str(node), saving=Saving(local=str(node)))
            (directory / f"context-{rank}").write_bytes(codec.encode(own))
        planned = msgspec.json.encode(sorted(signals)).decode()
        said = self._warm.run("attempt", directory / "context", directory, self.ranks, planned, *self._command).said
        return msgspec.json.decode(said, type=Ended), self._runner.left(directory)

    def next(self) -> None:
        """Begin a run that no signal has disturbed yet."""
        self._runner.run = f"{int(self._runner.run, 16) + 1:012x}"
        self._runner.attempts = 0

    def published(self) -> list[int]:
        """Return the steps of the valid checkpoints of the run."""
        return [checkpoints.step_of(name) for name in checkpoints.valid(self._runner.repo, self._runner.run)]

    def judge(self, left: Any) -> None:
        """Compare an attempt's records, and every valid checkpoint, with the undisturbed run."""
        for rank in range(self.ranks):
            assert left.steps(rank).items() <= self.whole.steps(rank).items()
            assert left.states(rank).items() <= self.whole.states(rank).items()
        for name in checkpoints.valid(self._runner.repo, self._runner.run):
            content = checkpoints.find(self._runner.repo, self._runner.run, name)[1].content
            step = checkpoints.step_of(name)
            assert content == self.whole.contents.get(step, content), name

    def finished(self) -> bool:
        return self.published()[-1:] == [self.steps]

    def check_store(self) -> None:
        """Read every byte; the runner publishes neither the runs nor the observed environment."""
        report = fsck.check(self._runner.repo, read_data=True)
        assert [one for one in report.damage if one.key.startswith("objects/") and "0" * 64 not in one.key] == []
