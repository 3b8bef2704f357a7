"""Pages on a real MLflow server behind a password, which is down at any time of a run: all end complete.

The page of a run during an outage equals the page of an undisturbed run, in all but ids.
"""

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlflow import MlflowClient

from m5ws.agent import untracked
from m5ws.agent.delivery import DELIVERED
from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.tracking.interface import TRACKED
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.services.conftest import MlflowServer
from tests.support.network.gate import PASSWORD, USER, Gate
from tests.support.records import mlflow_runs as written
from tests.support.records import planted
from tests.support.records.mlflow_pages import page_content
from tests.support.waiting import wait_for
from tests.support.workspace import command_line
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services

_PARTS = (range(1, 61), range(61, 181), range(181, 361))
_STEP_S = 240.0
"""The time between steps: a run of a day."""
_SCRIPT = """\
import m5ws
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = m5ws.session(model, optimizer, total_steps=10)
for step in session.steps():
    loss = model(torch.ones(1, 2)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss)
"""
_VARIABLES = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}


class _Site(msgspec.Struct):
    """A store and a tracker of runs in `home`. `whole` is the content of an undisturbed run's page."""

    home: Path
    repo: Repository
    snapshot: str
    tracker: Mlflow
    gate: Gate
    whole: Any = None

    def train(self, part: range, run: Run) -> None:
        """Write steps with their times, and a checkpoint after the last."""
        for rank in range(2):
            steps = (written.step(number, rank=rank) for number in part)
            timed = (msgspec.structs.replace(each, time_s=1.7e9 + _STEP_S * each.step + rank) for each in steps)
            planted.append(self.repo, run.id, 1, str(rank), *timed)
        written.checkpoint(self.repo, run, part[-1])

    def run(self, down: tuple[bool, bool, bool], *, is_waited_for: bool = True) -> Run:
        """Write a run in three parts. Its follower meets a server that is down in some of them."""
        run = written.publish_run(self.repo, self.snapshot, created_s=1.7e9)
        attempt = self.home / "runs" / run.id / "0001"
        attempt.mkdir(parents=True)
        self.gate.is_down = down[0]
        written.begin(self.repo, run)
        following = self.tracker.follow(run.id)
        for part, is_down in zip(_PARTS, down, strict=True):
            self.gate.is_down = is_down
            self.train(part, run)
            turned_away = self.gate.turned_away
            following.wake()
            met = partial(self._meets, run, part[-1], turned_away)
            wait_for(met)
        written.end(self.repo, run)
        (attempt / DELIVERED).touch()
        assert following.close(120.0) is not down[-1], following.problem
        return run

    def _meets(self, run: Run, step: int, turned_away: int) -> bool:
        """Return True if the follower has met the server as it is: it delivered the step, or was turned away."""
        if self.gate.is_down:
            return self.gate.turned_away > turned_away
        client = MlflowClient(self.tracker.tracking_uri)
        pages = find(client, run.id)
        return bool(pages) and client.get_run(pages[0]).data.tags.get("m5ws.delivered") == f"1:{step}"

    def content(self, run: Run) -> Any:
        return page_content(MlflowClient(self.tracker.tracking_uri), run)


@pytest.fixture(scope="module")
def server(ui_server: MlflowServer) -> Iterator[Gate]:
    """A gate before a real MLflow server."""
    with Gate(ui_server.port) as gate, pytest.MonkeyPatch.context() as patch:
        for name, value in _VARIABLES.items():
            patch.setenv(name, value)
        yield gate


@pytest.fixture(scope="module")
def site(server: Gate, tmp_path_factory: pytest.TempPathFactory) -> _Site:
    home = tmp_path_factory.mktemp("home")
    repo = Repository.create(LocalStore(home / "store", durable=False))
    tracker = Mlflow(server.url, "pages", repo.store.url, home / "runs")
    snapshot = written.publish_snapshot(repo, home / "source")
    made = _Site(home=home, repo=repo, snapshot=snapshot, tracker=tracker, gate=server)
    made.whole = made.content(made.run((False, False, False)))
    return made


@pytest.mark.parametrize(
    "down",
    [
        pytest.param((True, False, False), id="at the start"),
        pytest.param((False, True, False), id="in the middle", marks=pytest.mark.soak),
        pytest.param((False, False, True), id="at the end", marks=pytest.mark.soak),
        pytest.param((True, True, True), id="for a day"),
    ],
)
def test_a_page_equals_the_page_of_an_undisturbed_run(site: _Site, down: tuple[bool, bool, bool]) -> None:
    run = site.run(down)
    tracked = site.home / "runs" / run.id / "0001" / TRACKED
    assert tracked.exists() is not down[-1] and untracked.waiting(site.home) == [run.id] * down[-1]
    site.gate.is_down = False
    untracked.deliver(lambda: site.tracker, site.home)
    untracked.deliver(lambda: pytest.fail("a process delivers already"), site.home)
    wait_for(tracked.exists)
    assert site.content(run) == site.whole
    assert len(site.whole["metrics"]["m5ws/loss"]) == _PARTS[-1][-1] and site.whole["status"][0] == "FINISHED"
    wait_for(lambda: not untracked.waiting(site.home))
    untracked.deliver(lambda: pytest.fail("nothing is missing"), site.home)


def test_a_follower_without_the_end_of_the_ledger_leaves_the_page_to_the_command_that_delivers_it(site: _Site) -> None:
    run = written.publish_run(site.repo, site.snapshot, created_s=1.7e9)
    attempt = site.home / "runs" / run.id / "0001"
    attempt.mkdir(parents=True)
    written.begin(site.repo, run)
    following = site.tracker.follow(run.id)
    site.train(_PARTS[0], run)
    assert following.close(120.0), following.problem
    assert not (attempt / TRACKED).exists() and site.content(run)["status"][0] == "KILLED"
    for part in _PARTS[1:]:
        site.train(part, run)
    written.end(site.repo, run)
    (attempt / DELIVERED).touch()
    untracked.deliver(lambda: site.tracker, site.home)
    wait_for((attempt / TRACKED).exists)
    assert site.content(run) == site.whole


@pytest.mark.soak
def test_the_printed_command_and_any_other_command_complete_a_page(server: Gate, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", trainer="python", nproc=1, mlflow=True)
    (workspace.root / "train.py").write_text(_SCRIPT)
    settings = workspace.root / "m5ws.toml"
    environment = {"MLFLOW_TRACKING_URI": server.url, **_VARIABLES}
    environment |= {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])}
    assert "tracking_uri" not in settings.read_text()
    pages = []
    for complete in (_by_the_printed_command, _in_passing):
        server.is_down = True
        told = _m5ws(tmp_path, ["m5ws", "-C", str(workspace.root), "run"], environment)
        run = told.stdout.strip()
        assert "MLFLOW_TRACKING_PASSWORD" in told.stderr and PASSWORD not in told.stderr
        tracked = workspace.root / ".m5ws" / "runs" / run / "0001" / TRACKED
        assert not tracked.exists(), told.stderr
        server.is_down = False
        complete(workspace, run, told.stderr, environment)
        wait_for(tracked.exists)
        client = MlflowClient(server.url)
        (page,) = find(client, run)
        pages.append([metric.step for metric in client.get_metric_history(page, "m5ws/loss")])
        assert client.get_run(page).info.status == "FINISHED"
    assert pages[0] == pages[1] == list(range(1, 11))


def _by_the_printed_command(workspace: Workspace, run: str, told: str, environment: dict[str, str]) -> None:
    """Type the printed command where it was printed, with the variables that it names and no other of MLflow's."""
    shown = _m5ws(workspace.root.parent, ["m5ws", "-C", str(workspace.root), "show", run], environment)
    assert "MLflow lacks records of the run" in shown.stderr
    printed = re.search(r"`(.* ui --deliver)`", told)
    assert printed is not None and printed[0] in shown.stderr, told
    given = {name: value for name, value in environment.items() if name != "MLFLOW_TRACKING_URI"}
    assert printed[1].startswith(f"MLFLOW_TRACKING_URI={environment['MLFLOW_TRACKING_URI']} ")
    _m5ws(workspace.root.parent, ["sh", "-c", printed[1]], given)


def _in_passing(workspace: Workspace, run: str, told: str, environment: dict[str, str]) -> None:
    assert _m5ws(workspace.root, ["m5ws", "ls", "--runs"], environment).stdout


def _m5ws(folder: Path, argv: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in command_line.inherited().items() if not name.startswith("MLFLOW")}
    return subprocess.run(argv, cwd=folder, env=inherited | environment, capture_output=True, text=True, check=True)
