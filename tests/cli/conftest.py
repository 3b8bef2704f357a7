"""A command line in this process, and a store with a snapshot and a run in it, made through the repository."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws import workspace
from m5ws.cli import main
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.environment import Declared, Observed
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Event, Notice, RankStarted, Step
from m5ws.records.run import LaunchSpec, Run
from m5ws.records.verdict import Verdict
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.workspace.checkouts import commit_all, write


class Outcome(msgspec.Struct, frozen=True):
    """Status and output of one call of the command line."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as one JSON document; fails if there is anything else on it."""
        assert self.out, self.err
        return json.loads(self.out)


M5 = Callable[..., Outcome]
DOCTOR = ("doctor", "--timeout", "300")
"""A busy machine delays a check for longer than the default timeout."""


@pytest.fixture
def m5(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> M5:
    """Call the command line in this process, in the workspace that the test has, if it has one."""

    def call(*arguments: str | Path) -> Outcome:
        words = [str(word) for word in arguments]
        if "place" in request.fixturenames and "-C" not in words:
            words = ["-C", str(request.getfixturevalue("place")), *words]
        capsys.readouterr()
        status = main(words)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace in a git repository of its own, with a script, a config file and one commit."""
    root = tmp_path / "place"
    files = {
        "m5ws.toml": "name = 'small'\n[mlflow]\nenabled = false\n",
        "config.yaml": "lr: 0.1\nsteps: 3\n",
        "train.py": "print('trained')\n",
    }
    write(root, files)
    commit_all(root)
    return root


@pytest.fixture
def home(place: Path) -> Repository:
    """The store of the workspace, empty."""
    return workspace.find(place, {}).repository(create=True)


class Made(msgspec.Struct, frozen=True):
    """The ids of the objects that `made` stored."""

    snapshot: str
    changed: str
    run: str
    replay: str


@pytest.fixture
def made(home: Repository, place: Path, tmp_path: Path) -> Made:
    """Two snapshots that differ in a learning rate, a run of the first, and its replay with a verdict."""
    snapshot = _snapshot(home, tmp_path / "one", "lr: 0.1\n", "the first")
    changed = _snapshot(home, tmp_path / "two", "lr: 0.2\n", "another rate")
    run = planted.run(home, "7c1d00000001", snapshot, spec=_SPEC, name="trial", created_s=1000.0)
    replay = planted.run(
        home, "7c1d00000002", snapshot, spec=_SPEC, purpose="reproduce", reproduces=run.id, created_s=2000.0
    )
    _train(home, run)
    _train(home, replay)
    verdict = Verdict(run=run.id, replay=replay.id, outcome="reproduced", compared={"steps": 3}, created_s=2100.0)
    runs.publish_verdict(home, verdict)
    logs = place / ".m5ws" / "runs" / run.id / "0001" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.log").write_text("zero\nend of zero")
    (logs / "rank-1.log").write_text("one\n")
    (logs / "launcher.log").write_text("launched\n")
    return Made(snapshot, changed, run.id, replay.id)


_SPEC = LaunchSpec(command=("train.py",), nproc=2, seed=7)


def _snapshot(repo: Repository, folder: Path, config: str, message: str) -> str:
    code = planted.tree(repo, folder, {"train.py": "print('trained')\n"})
    settings = planted.tree(repo, folder, {"config.yaml": config})
    declared = Declared(wanted={"nccl": "2.27"})
    record = planted.snapshot(code, commit="a" * 40, dirty=True, config=settings, declared=declared)
    observed = repo.objects.put_record(Observed(facts={"python": "3.11.2", "nccl": None}, distributions={"click": "8"}))
    return planted.publish(
        repo, record, created_s=900.0, author="Ada", message=message, branch="main", observed=observed
    )


def _train(repo: Repository, run: Run) -> None:
    """Write the ledger of a run of three steps on one rank, with a checkpoint after the last."""
    began = run.created_s
    observed = repo.objects.put_record(Observed(facts={"python": "3.11.2"}))
    planted.begin(repo, run.id, observed=observed, time_s=began, host="node")
    content = Content(format="dcp/1", world=2)
    digest = planted.checkpoint(repo, run.id, 3, content)
    name = checkpoints.name(3, 1)
    ranks: list[Event] = [RankStarted(time_s=began, rank=0, world=2, pid=1)]
    for step in (1, 2, 3):
        quantities = {"loss": (2.0 / step).hex()}
        ranks.append(Step(time_s=began + step, step=step, quantities=quantities, tokens=64, seconds=1.0, total=3))
    stored = repo.objects.digest(codec.encode(content))
    ranks.append(CheckpointPublished(time_s=began + 4, step=3, name=name, checkpoint=digest, content=stored))
    planted.append(repo, run.id, 1, "0", *ranks)
    ended: list[Event] = [
        Notice(time_s=began + 4, kind="input-modified", message="data was changed", step=3),
        AttemptEnded(time_s=began + 65, outcome="finished", exit_code=0),
    ]
    planted.append(repo, run.id, 1, NODE, *ended)
