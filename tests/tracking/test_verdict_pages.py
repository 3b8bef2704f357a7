"""A run and its verdict that MLflow did not take: nothing fails, and a later command delivers them."""

from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from m5ws.agent import untracked
from m5ws.agent.delivery import DELIVERED
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


def test_records_that_mlflow_did_not_take_are_delivered_later(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, tmp_path: Path
) -> None:
    replay = written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce")
    for each in (run, replay):
        written.begin(repo, each)
        written.train(repo, each, range(1, 4))
        written.end(repo, each)
    runs.publish_verdict(repo, Verdict(run=run.id, replay=replay.id, outcome="reproduced"))
    down = Mlflow("http://127.0.0.1:1", "tests", repo.store.url, tmp_path / "runs")
    directory = tmp_path / "runs" / replay.id
    (directory / "0001").mkdir(parents=True)
    (directory / "0001" / DELIVERED).touch()
    untracked.show_verdict(down, tmp_path, replay.id)
    (problem,) = untracked.catch_up(down, tmp_path)
    assert f"run {replay.id} is not in MLflow" in problem and "127.0.0.1:1" in problem
    assert (directory / UNTOLD).exists() and not (directory / "0001" / TRACKED).exists()
    assert untracked.catch_up(tracker, tmp_path) == []
    assert not (directory / UNTOLD).exists() and (directory / "0001" / TRACKED).exists()
    (page,) = find(client, replay.id)
    assert [metric.step for metric in client.get_metric_history(page, "m5ws/loss")] == [1, 2, 3]
    assert {_tags(client, each)["m5ws.verdict"] for each in (run, replay)} == {"reproduced"}


def test_the_process_that_delivers_a_run_shows_its_verdict(tracker: Mlflow, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "7c1d"
    (directory / "0001").mkdir(parents=True)
    started = tmp_path / "mlflow.log"
    untracked.show_verdict(tracker, tmp_path, "7c1d", is_followed=True)
    assert (directory / UNTOLD).exists() and not started.exists()
    (directory / "0001" / TRACKED).touch()
    untracked.show_verdict(tracker, tmp_path, "7c1d", is_followed=True)
    assert started.exists()
