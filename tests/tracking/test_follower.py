"""The follower as a real process on a real MLflow database: in order, once, whatever is killed when."""

import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from m5ws.errors import M5Error
from m5ws.records import exact
from m5ws.records.run import Run
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from m5ws.tracking.mlflow import process as mlflow_process
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written
from tests.support.records import planted


def _deliver(tracker: Mlflow, run: Run, *, once: bool = True) -> None:
    """Deliver in this process, as a follower does with --once or at the end of its input."""
    Follower(tracker.options(run.id, once=once)).advance(last=True)


def _page(client: MlflowClient, run: Run) -> Any:
    (only,) = find(client, run.id)
    return client.get_run(only)


def _history(client: MlflowClient, run: Run, name: str) -> list[tuple[int, str]]:
    found = client.get_metric_history(_page(client, run).info.run_id, name)
    return [(one.step, one.value.hex()) for one in sorted(found, key=lambda one: (one.timestamp, one.step))]


def _losses(first: int, last: int) -> list[tuple[int, str]]:
    return [(number, (1 / number).hex()) for number in range(first, last + 1)]


def test_a_run_with_losses_that_are_not_finite_is_delivered_completely(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 3))
    losses = [math.inf, -math.inf, math.nan, math.nan]
    for rank in range(2):
        for number, loss in enumerate(losses, 3):
            step = written.step(number, rank=rank)
            told = msgspec.structs.replace(step, quantities=step.quantities | {"loss": exact.encode(loss)})
            planted.append(repo, run.id, 1, str(rank), told)
    written.train(repo, run, range(7, 9))
    written.end(repo, run)
    _deliver(tracker, run)
    largest = sys.float_info.max
    found = dict(_history(client, run, "m5ws/loss"))
    assert [found[step] for step in range(3, 7)] == [largest.hex(), (-largest).hex(), "nan", "nan"]
    assert [found[1], found[8]] == [_losses(1, 1)[0][1], _losses(8, 8)[0][1]]
    assert _page(client, run).info.status == "FINISHED"


def test_a_finished_run_is_delivered_whole(repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 6))
    name = written.checkpoint(repo, run, 5)
    written.end(repo, run)
    _deliver(tracker, run)

    page = _page(client, run)
    tags = page.data.tags
    assert _history(client, run, "m5ws/loss") == _losses(1, 5)
    assert {"m5ws/lr", "m5ws/grad_norm", "m5ws/tokens_per_s", "m5ws/step_s"} < set(page.data.metrics)
    assert page.data.metrics["m5ws/tokens_per_s"] == 8192.0
    assert (page.info.status, page.info.end_time) == ("FINISHED", 1_700_105_000_000)
    assert page.info.start_time == 1_700_100_000_000
    assert page.info.run_name == f"run {run.id}"
    assert tags["m5ws.snapshot_id"] == run.snapshot
    assert (tags["m5ws.torch"], tags["m5ws.nccl"], tags["m5ws.gpu"]) == (
        "2.13.0+cu130",
        "2.29.3",
        "8 × NVIDIA H100 80GB HBM3",
    )
    assert tags["m5ws.efa"] == "driver=2.17.2,libfabric=2.3.1"
    assert tags["mlflow.source.git.commit"] == written.COMMIT
    assert tags["mlflow.source.git.dirty"] == "true"
    assert tags["mlflow.source.git.repoURL"] == "https://git.example/a/b.git"
    assert tags["m5ws.data"].endswith(f",corpus={written.DVC_HASH[:12]}")
    assert all("\n" not in value for key, value in tags.items() if key != "mlflow.note.content")
    assert f"m5ws reproduce {run.id}" in tags["mlflow.note.content"]
    params = page.data.params
    assert [params[f"model.{key}"] for key in ("width", "layers.0", "layers.1")] == ["64", "2", "3"]
    assert [params[f"launch.{key}"] for key in ("nproc", "seed")] == ["2", "7"]
    assert (params["train.lr"], params["train.warmup"]) == ("0.0003", "null")
    datasets = {one.dataset.name: one for one in page.inputs.dataset_inputs}
    assert datasets["corpus"].dataset.digest == written.DVC_HASH
    assert len(datasets["data"].dataset.digest) == 32
    assert next(tag.value for tag in datasets["data"].tags if tag.key == "m5ws.tree").startswith(
        datasets["data"].dataset.digest
    )
    for each in datasets.values():
        assert {tag.key: tag.value for tag in each.tags}["mlflow.data.context"] == "training"
    (model,) = client.search_logged_models(
        [page.info.experiment_id], filter_string=f"tags.`m5ws.snapshot_id` LIKE '{run.snapshot[:12]}%'"
    )
    assert (model.name, model.status) == (f"checkpoint-{name}", "READY")
    assert [(one.model_id, one.step) for one in page.outputs.model_outputs] == [(model.model_id, 5)]

    before = page.to_dictionary(), page.outputs.model_outputs[0].model_id
    _deliver(tracker, run)
    after = _page(client, run)
    assert (after.to_dictionary(), after.outputs.model_outputs[0].model_id) == before
    assert len(after.outputs.model_outputs) == 1
    assert _history(client, run, "m5ws/loss") == _losses(1, 5)


def test_absent_facts_have_the_tag_value_absent(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run, facts={"torch": "2.13.0+cpu"})
    written.end(repo, run, outcome="failed")
    _deliver(tracker, run)
    page = _page(client, run)
    for name in ("nccl", "efa", "cuda", "driver", "gpu"):
        assert page.data.tags[f"m5ws.{name}"] == "absent"
    assert page.info.status == "FAILED"
    assert page.data.metrics == {}


def test_a_resumed_attempt_continues_on_the_same_page(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 5))
    name = written.checkpoint(repo, run, 2)
    _deliver(tracker, run, once=False)
    # No word from the supervisor, and it is gone.
    assert _page(client, run).info.status == "KILLED"
    written.begin(repo, run, attempt=2, resume=name, facts=written.FACTS | {"nccl": "2.30.0"})
    written.train(repo, run, range(3, 7), attempt=2)
    written.end(repo, run, attempt=2)
    _deliver(tracker, run)
    assert _history(client, run, "m5ws/loss") == _losses(1, 6)
    page = _page(client, run)
    assert (page.info.status, page.data.tags["m5ws.attempt"], page.data.tags["m5ws.nccl"]) == (
        "FINISHED",
        "2",
        "2.30.0",
    )


def test_the_page_of_a_script_is_adopted_and_its_content_is_kept(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    experiment = client.create_experiment("the script's own")
    own = client.create_run(experiment, tags={"m5ws.run_id": run.id, "m5ws.attempt": "1", "mine": "x"}).info.run_id
    client.log_param(own, "model.width", "of the script")
    client.log_metric(own, "loss", 0.5, step=1)
    client.set_tag(own, "mlflow.note.content", "typed by a person")
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    written.end(repo, run)
    _deliver(tracker, run)
    page = _page(client, run)
    assert page.info.run_id == own
    assert page.data.params["model.width"] == "of the script"
    assert page.data.params["train.lr"] == "0.0003"
    assert page.data.tags["mine"] == "x"
    assert page.data.tags["mlflow.note.content"].endswith("typed by a person")
    assert page.data.metrics["loss"] == 0.5
    assert tracker.logged(run.id).metrics == {"loss": {(1, (0.5).hex())}}


def test_a_delivery_does_not_wait_for_a_hanging_mlflow(repo: Repository, run: Run, tmp_path: Path) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    written.end(repo, run)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        following = _elsewhere(repo, tmp_path, silent).follow(run.id)
        silent.settimeout(120)
        silent.accept()
        assert not following.close(0.1) and not following.problem
    assert not following.close(120)
    assert f"run {run.id} is not in MLflow" in following.problem


def test_two_deliveries_make_one_page_and_the_supervisor_is_not_held_up(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, tmp_path: Path
) -> None:
    """The supervisor writes more than a stopped follower reads, and another process delivers the run too."""
    (tmp_path / "runs" / run.id / "0001").mkdir(parents=True)
    written.begin(repo, run)
    following = tracker.follow(run.id)
    os.kill(following._process.pid, signal.SIGSTOP)
    for _ in range(70_000):
        following.wake()
    os.kill(following._process.pid, signal.SIGCONT)
    written.train(repo, run, range(1, 4))
    written.end(repo, run)
    for delivery in (tracker.catch_up([run.id]), following):
        assert delivery.close(120), delivery.problem
    following.wake()
    assert _page(client, run).info.status == "FINISHED" and _history(client, run, "m5ws/loss") == _losses(1, 3)


def _elsewhere(repo: Repository, tmp_path: Path, server: socket.socket) -> Mlflow:
    """Return the tracker of the MLflow on a socket. The run has a directory on this machine."""
    return Mlflow(f"http://127.0.0.1:{server.getsockname()[1]}", "tests", repo.store.url, tmp_path / "runs")


def test_a_follower_without_news_sends_no_request_to_the_store(
    repo: Repository, run: Run, tracker: Mlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of 1,000 ranks that polled the ledger would send 1,000 requests a second."""
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    follower = Follower(tracker.options(run.id))
    follower.advance()
    for name in ("get", "list", "names", "stat"):
        monkeypatch.setattr(LocalStore, name, lambda _store, key, *_: pytest.fail(f"the store was asked for {key}"))
    follower.advance(look=False)


def test_lines_on_standard_input_start_readings_and_its_end_stops_the_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert mlflow_process._wait(0.0) == (False, False)
        os.write(writer, b"\n\n")
        assert mlflow_process._wait(None) == (True, False)
        assert mlflow_process._wait(0.0) == (False, False)
        os.close(writer)
        assert mlflow_process._wait(None) == (True, True)


def test_a_follower_continues_when_the_store_is_back(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    follower, place = Follower(tracker.options(run.id)), Path(repo.store.url)
    assert mlflow_process._deliver(follower, last=False) is None
    written.train(repo, run, range(4, 6))
    written.end(repo, run)
    place.rename(place.with_name("unmounted"))
    assert isinstance(mlflow_process._deliver(follower, last=False), M5Error)
    place.with_name("unmounted").rename(place)
    assert mlflow_process._deliver(follower, last=True) is None
    assert _history(client, run, "m5ws/loss") == _losses(1, 5) and _page(client, run).info.status == "FINISHED"


def test_an_unknown_run_is_reported_without_a_traceback(tracker: Mlflow) -> None:
    following = tracker.follow("feedfeedfeed")
    assert not following.close(60)
    assert "feedfeedfeed" in following.problem
    assert "Traceback" not in following.problem


def test_starting_a_follower_loads_no_mlflow() -> None:
    modules = "m5ws.tracking.mlflow.tracker, m5ws.tracking.mlflow.context_provider"
    probe = f"import sys; import {modules}; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class _Refusing:
    """A client whose server refuses one step."""

    def __init__(self, client: MlflowClient, step: int) -> None:
        self._client, self._step = client, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def log_batch(self, run_id: str, **parts: Any) -> None:
        if any(metric.step == self._step for metric in parts.get("metrics", ())):
            raise MlflowException("no such step", INVALID_PARAMETER_VALUE)
        self._client.log_batch(run_id, **parts)


def test_a_step_that_cannot_be_delivered_blocks_no_other_step(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    written.begin(repo, run)
    written.train(repo, run, range(1, 3))
    for rank in range(2):
        step = written.step(3, rank=rank)
        planted.append(repo, run.id, 1, str(rank), msgspec.structs.replace(step, quantities={"loss": "no number"}))
    written.train(repo, run, range(4, 40))
    written.end(repo, run)
    follower = Follower(tracker.options(run.id, once=True), lambda _: _Refusing(client, 20))
    follower.advance(last=True)
    assert [text.partition(":")[0] for text in follower.refused] == ["step 3", "step 20"]
    steps = [step for step, _ in _history(client, run, "m5ws/loss")]
    assert steps == [1, 2, *range(4, 20), *range(21, 40)]
    assert _page(client, run).info.status == "FINISHED"
