"""Published checkpoints as MLflow's external models: found by search, linked to run and step, once, and registrable."""

from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from m5ws.records.ledger import NODE, OutputsStored
from m5ws.records.run import Parent, Run
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written
from tests.support.records import planted


def _page(client: MlflowClient, run: Run) -> Any:
    (only,) = find(client, run.id)
    return client.get_run(only)


class Counting:
    """An MLflow client that counts its calls by name."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._client, name)


def test_a_checkpoint_is_found_by_snapshot_and_step_and_can_be_registered(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 6))
    names = [written.checkpoint(repo, run, step) for step in (2, 4)]
    written.end(repo, run)
    Follower(tracker.options(run.id, once=True)).advance(last=True)
    page = _page(client, run)
    query = f"tags.`m5ws.snapshot_id` = '{run.snapshot}' AND tags.`m5ws.step` = '4'"
    (model,) = client.search_logged_models([page.info.experiment_id], filter_string=query)
    assert model.name == f"checkpoint-{names[1]}" and model.source_run_id == page.info.run_id
    assert model.tags["m5ws.run_id"] == run.id and len(model.tags["m5ws.checkpoint"]) == 64
    assert model.params == {"run": run.id, "step": "4", "checkpoint": names[1]}
    assert sorted(one.step for one in page.outputs.model_outputs) == [2, 4]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.tracking_uri)
    version = mlflow.register_model(f"models:/{model.model_id}", "small-lm")
    assert client.get_model_version("small-lm", version.version).source == f"models:/{model.model_id}"


def test_output_files_are_a_model_of_no_step(repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 6))
    stored = OutputsStored(name="0001-0-final", record="1" * 64, content="2" * 64)
    planted.append(repo, run.id, 1, NODE, stored)
    written.end(repo, run)
    Follower(tracker.options(run.id, once=True)).advance(last=True)
    page = _page(client, run)
    (model,) = client.search_logged_models([page.info.experiment_id])
    assert (model.name, model.params) == ("outputs-0001-0-final", {"run": run.id, "outputs": "0001-0-final"})
    assert "m5ws.step" not in model.tags
    assert [one.step for one in page.outputs.model_outputs] == [5]


def test_many_checkpoints_are_searched_once_and_linked_in_one_call(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 3))
    for step in range(1, 21):
        written.checkpoint(repo, run, step)
    counting = Counting(client)
    follower = Follower(tracker.options(run.id), lambda uri: counting)
    follower.advance()
    made = counting.calls.count("create_logged_model")
    assert (made, counting.calls.count("log_outputs"), counting.calls.count("search_logged_models")) == (20, 1, 1)
    written.checkpoint(repo, run, 21)
    follower.advance()
    assert counting.calls.count("search_logged_models") == 1
    again = Counting(client)
    Follower(tracker.options(run.id, once=True), lambda uri: again).advance(last=True)
    assert "create_logged_model" not in again.calls and "log_outputs" not in again.calls
    assert len(_page(client, run).outputs.model_outputs) == 21


def test_the_page_of_a_fork_is_below_the_page_of_its_parent(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    name = written.checkpoint(repo, run, 2)
    written.end(repo, run)
    Follower(tracker.options(run.id, once=True)).advance(last=True)
    parent = Parent(run=run.id, checkpoint=name, step=2, digest=written.publish_checkpoint(repo, run, 2))
    fork = written.publish_run(repo, run.snapshot, parent=parent)
    written.begin(repo, fork, resume=name)
    written.train(repo, fork, range(3, 6))
    written.end(repo, fork)
    Follower(tracker.options(fork.id, once=True)).advance(last=True)
    tags = _page(client, fork).data.tags
    assert (tags["m5ws.parent_run"], tags["m5ws.parent_step"]) == (run.id, "2")
    assert tags["mlflow.parentRunId"] == _page(client, run).info.run_id
    assert f"after step 2 of run `{run.id}`" in tags["mlflow.note.content"]
