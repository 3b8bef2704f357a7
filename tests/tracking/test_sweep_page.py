"""The page of a sweep, above the pages of its runs."""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from m5ws.records.run import Axis, Sweep
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow import pages, sweep_page
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written

_SWEEP = Sweep(id="5eeb00000000", snapshot="0" * 64, axes=(Axis(key="lr", values=("1", "2")),))


def _pages_of_sweep(client: MlflowClient) -> list[Any]:
    return pages.search(client, sweep_page.SWEEP_PAGE_TAG, _SWEEP.id)


def test_the_runs_of_a_sweep_are_below_one_page(
    repo: Repository, tracker: Mlflow, client: MlflowClient, tmp_path: Path
) -> None:
    snapshot = written.publish_snapshot(repo, tmp_path / "source")
    runs = [written.publish_run(repo, snapshot, sweep=_SWEEP, name=f"lr={value}") for value in "12"]
    for run in runs:
        written.begin(repo, run)
        written.end(repo, run)
        Follower(tracker.options(run.id, once=True)).advance(last=True)
    (parent,) = _pages_of_sweep(client)
    tags = [client.get_run(find(client, run.id)[0]).data.tags for run in runs]
    assert [tag["mlflow.parentRunId"] for tag in tags] == [parent.info.run_id] * 2
    assert {tag["m5ws.sweep"] for tag in tags} == {_SWEEP.id}
    assert parent.info.status == "FINISHED" and "`lr`: `1`, `2`" in parent.data.tags["mlflow.note.content"]


def test_followers_that_create_the_page_in_parallel_use_the_same_page(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = client.create_experiment("racing")
    created = MlflowClient.create_run

    def create(self: MlflowClient, *arguments: Any, **fields: Any) -> Any:
        monkeypatch.setattr(MlflowClient, "create_run", created)
        # Another follower found no page either, and was first.
        sweep_page.open_page(client, experiment, _SWEEP)
        return created(self, *arguments, **fields)

    monkeypatch.setattr(MlflowClient, "create_run", create)
    chosen = sweep_page.open_page(client, experiment, _SWEEP)
    (parent,) = _pages_of_sweep(client)
    assert chosen == parent.info.run_id == sweep_page.open_page(client, experiment, _SWEEP)
