"""Verdicts on the pages of their runs: delivered by a process in the background, and again after a failure."""

from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from m5ws.agent import untracked
from m5ws.records.run import Run
from m5ws.records.verdict import Verdict
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.tracking.interface import TRACKED, UNTOLD
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written


def _tags(client: MlflowClient, run: Run) -> Any:
    (page,) = find(client, run.id)
    return client.get_run(page).data.tags


def test_a_verdict_that_mlflow_did_not_take_is_delivered_later(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, tmp_path: Path
) -> None:
    replay = written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce")
    for each in (run, replay):
        written.begin(repo, each)
        written.train(repo, each, range(1, 4))
        written.end(repo, each)
    runs.publish_verdict(repo, Verdict(run=run.id, replay=replay.id, outcome="reproduced"))
    down = Mlflow("http://127.0.0.1:1", "tests", repo.store.url, tmp_path / "runs")
    untracked.show_verdict(down, tmp_path, replay.id)
    assert untracked.catch_up(down, tmp_path) and (tmp_path / "runs" / replay.id / UNTOLD).exists()
    assert untracked.catch_up(tracker, tmp_path) == []
    assert not (tmp_path / "runs" / replay.id / UNTOLD).exists()
    assert {_tags(client, each)["m5ws.verdict"] for each in (run, replay)} == {"reproduced"}


def test_the_process_that_delivers_a_run_shows_its_verdict(tracker: Mlflow, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "7c1d"
    (directory / "0001").mkdir(parents=True)
    started = directory / "mlflow.log"
    untracked.show_verdict(tracker, tmp_path, "7c1d", is_followed=True)
    assert (directory / UNTOLD).exists() and not started.exists()
    (directory / "0001" / TRACKED).touch()
    untracked.show_verdict(tracker, tmp_path, "7c1d", is_followed=True)
    assert started.exists()
