"""Queries to MLflow, and verdicts on both pages."""

import math
import socket
from pathlib import Path

import msgspec
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from m5ws.records.note import Note
from m5ws.records.reasons import Gap, JointReason
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Change, Divergence, JointVerdict, Recheck, Verdict
from m5ws.repository.references import notes, runs
from m5ws.repository.repository import Repository
from m5ws.tracking.interface import LoggedResults
from m5ws.tracking.mlflow.client import TrackerError
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.support.records import mlflow_runs as written


def _finished(repo: Repository, run: Run) -> Run:
    written.begin(repo, run)
    written.train(repo, run, range(1, 4))
    written.end(repo, run)
    return run


def _deliver(tracker: Mlflow, run: Run) -> None:
    Follower(tracker.options(run.id, once=True)).advance(last=True)


def _tags(client: MlflowClient, run: Run) -> dict[str, str]:
    (only,) = find(client, run.id)
    return dict(client.get_run(only).data.tags)


def test_a_tracker_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TrackerError, match=uri):
            Mlflow(uri, "tests", "", Path()).ui_page()


def test_a_query_does_not_create_an_embedded_store(tmp_path: Path) -> None:
    nowhere = Mlflow(f"sqlite:///{tmp_path}/no.db", "tests", "", tmp_path)
    assert nowhere.ui_page() == ""
    assert nowhere.logged("0" * 12) == LoggedResults()


def test_logged_metrics_are_exact_and_exclude_metrics_of_m5ws_and_the_system(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    values = [0.1 + 0.2, 5e-324, -1.5, math.nan, 2.0**1000]
    experiment = client.create_experiment("its own")
    tags = {"m5ws.run_id": run.id, "m5ws.attempt": "1"}
    page = client.create_run(experiment, tags=tags | {"m5ws.rank": "0"}).info.run_id
    other = client.create_run(experiment, tags=tags | {"m5ws.rank": "1"}).info.run_id
    for step, value in enumerate(values):
        client.log_metric(page, "val/loss", value, step=step, timestamp=1000 - step)
    client.log_batch(page, metrics=[Metric(f"m{i}", float(i), 1, 0) for i in range(30)])
    client.log_metric(page, "unstepped", 2.0)
    client.log_metric(page, "unstepped", 1.0)
    client.log_metric(page, "system/cpu", 12.0)
    client.log_metric(other, "val/loss", 7.0, step=9)
    _deliver(tracker, _finished(repo, run))
    found = tracker.logged(run.id).metrics
    assert found["val/loss"] == {*((step, value.hex()) for step, value in enumerate(values)), (9, (7.0).hex())}
    assert found["unstepped"] == {(0, (1.0).hex()), (0, (2.0).hex())}
    assert set(found) == {"val/loss", "unstepped", *(f"m{i}" for i in range(30))}


def test_logged_parameters_and_artifacts_exclude_entries_of_m5ws(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient, tmp_path: Path
) -> None:
    tags = {"m5ws.run_id": run.id, "m5ws.attempt": "1", "m5ws.rank": "0"}
    experiment = client.create_experiment("its own", artifact_location=(tmp_path / "artifacts").as_uri())
    pages = [client.create_run(experiment, tags=tags).info.run_id for _ in range(2)]
    for number, page in enumerate(pages):
        client.log_param(page, "best_k", number)
        client.log_dict(page, {"accuracy": number}, "deep/eval.json")
    model = client.create_logged_model(experiment, name="net", source_run_id=pages[0])
    (tmp_path / "w.npy").write_bytes(b"weights")
    client.log_model_artifact(model.model_id, str(tmp_path / "w.npy"))
    _deliver(tracker, _finished(repo, run))
    logged = tracker.logged(run.id)
    assert logged.parameters == {"best_k": {(0, "0"), (0, "1")}}
    assert {name: len(each) for name, each in logged.artifacts.items()} == {"deep/eval.json": 2, "models/net/w.npy": 1}
    (fetch,) = logged.artifacts["models/net/w.npy"]
    (tmp_path / "to").mkdir()
    assert fetch(tmp_path / "to").read_bytes() == b"weights"


def _show(tracker: Mlflow, verdict: Verdict) -> None:
    for name in (verdict.run, *verdict.replays):
        tracker.refresh(name)


def test_a_verdict_is_on_both_pages(repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient) -> None:
    _finished(repo, run)
    replay = _finished(repo, written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce"))
    _deliver(tracker, replay)
    (page,) = find(client, replay.id)
    client.set_tag(page, "mlflow.note.content", client.get_run(page).data.tags["mlflow.note.content"] + "\n\nmy words")
    verdict = Verdict(
        run=run.id,
        replay=replay.id,
        outcome="diverged",
        compared={"steps": 30, "states": 1},
        not_compared=(Gap(kind="none recorded", name="batches"),),
        first=Divergence(
            step=31, rank=1, quantity="loss", original="0x1.8p+0", replayed="0x1.9p+0", tensor="model.head.weight"
        ),
        changes=(Change(part="config", name="train.lr", old="3.0e-4", new="3.1e-4"),),
        created_s=2.0,
    )
    runs.publish_verdict(repo, verdict)
    # The original was never delivered: its page is made now.
    _show(tracker, verdict)
    original, replayed = _tags(client, run), _tags(client, replay)
    first = "step 31, rank 1, loss, tensor model.head.weight: 0x1.8p+0 → 0x1.9p+0"
    for tags in (original, replayed):
        assert (tags["m5ws.verdict"], tags["m5ws.verdict.first"]) == ("diverged", first)
        assert "**diverged**" in tags["mlflow.note.content"]
        assert "config train.lr: 3.0e-4 → 3.1e-4" in tags["mlflow.note.content"]
        assert "batches: none were recorded" in tags["mlflow.note.content"]
    assert replayed["mlflow.note.content"].endswith("my words")
    assert replayed["m5ws.reproduces"] == run.id
    assert original["m5ws.replayed_by"] == replay.id
    assert "m5ws.reproduced_by" not in original

    second = _finished(repo, written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce"))
    proof = msgspec.structs.replace(verdict, replay=second.id, outcome="reproduced", first=None, created_s=3.0)
    runs.publish_verdict(repo, proof)
    _show(tracker, proof)
    original = _tags(client, run)
    assert (original["m5ws.verdict"], original["m5ws.verdict.first"]) == ("reproduced", "none")
    third = _finished(repo, written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce"))
    part = msgspec.structs.replace(proof, replay=third.id, outcome="sampled", created_s=4.0)
    runs.publish_verdict(repo, part)
    _show(tracker, part)
    original = _tags(client, run)
    assert (original["m5ws.verdict"], original["m5ws.verdict.newest"]) == ("reproduced", "sampled")
    assert original["m5ws.reproduced_by"] == second.id
    assert original["m5ws.replayed_by"] == f"{replay.id}, {second.id}, {third.id}"

    before = original, _tags(client, replay)
    for one in (run, replay):
        _deliver(tracker, one)
    assert (_tags(client, run), _tags(client, replay)) == before


def test_a_verdict_after_two_replays_is_on_all_three_pages(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    _finished(repo, run)
    one, two = (
        _finished(repo, written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce")) for _ in "12"
    )
    first = Divergence(step=2, rank=0, quantity="loss", original="0x1.8p+0", replayed="0x1.9p+0")
    parted = Divergence(step=2, rank=0, quantity="loss", original="0x1.9p+0", replayed="0x1.ap+0")
    verdict = Verdict(
        run=run.id,
        replay=one.id,
        outcome="nondeterministic",
        first=first,
        recheck=Recheck(replay=two.id, last=2, repeats=False, first=parted),
        created_s=2.0,
    )
    runs.publish_verdict(repo, verdict)
    _show(tracker, verdict)
    for page in (run, one, two):
        tags = _tags(client, page)
        assert tags["m5ws.verdict"] == "nondeterministic"
        assert "two replays of this run differ" in tags["mlflow.note.content"]
    assert _tags(client, run)["m5ws.replayed_by"] == f"{one.id}, {two.id}"
    assert _tags(client, two)["m5ws.reproduces"] == run.id
    # Delivered once more, from the store alone, the page says the same.
    before = _tags(client, two)
    _deliver(tracker, two)
    assert _tags(client, two) == before


def test_the_joint_verdict_of_segments_is_on_the_page_of_the_run(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    _finished(repo, run)
    replay = _finished(repo, written.publish_run(repo, run.snapshot, reproduces=run.id, purpose="reproduce"))
    parts = [Segment(first=first, last=first + 10) for first in (0, 10, 20)]
    verdict = Verdict(run=run.id, replay=replay.id, outcome="sampled", segment=parts[0], created_s=2.0)
    runs.publish_verdict(repo, verdict)
    _show(tracker, verdict)
    joint = JointVerdict(
        run=run.id,
        outcome="diverged",
        reason=JointReason(kind="one verdict", replay=replay.id, segment=parts[1]),
        of=3,
        verified=(parts[0],),
        differ=(parts[1],),
        open=(parts[2],),
        replays=(replay.id,),
        created_s=3.0,
    )
    runs.publish_joint(repo, joint)
    tracker.refresh(joint.run)
    tags = _tags(client, run)
    told = [tags[f"m5ws.segments.{name}"] for name in ("verified", "differs", "not_verified")]
    assert (tags["m5ws.verdict"], told) == ("diverged", ["steps 1-10", "steps 11-20", "steps 21-30"])
    assert "**diverged**, segment by segment: steps 11-20: see the verdict on replay" in tags["mlflow.note.content"]
    _deliver(tracker, run)
    assert _tags(client, run) == tags


def test_notes_are_on_the_run_s_page_at_once_and_after_every_delivery(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    notes.publish(repo, Note(run=run.id, text="the spike\n goes", kind="why", created_s=1.0))
    _finished(repo, run)
    _deliver(tracker, run)
    assert _tags(client, run)["m5ws.why"] == "the spike goes" and "m5ws.outcome" not in _tags(client, run)
    notes.publish(repo, Note(run=run.id, text="x" * 600, outcome="refuted", created_s=2.0))
    tracker.refresh(run.id)
    tags = _tags(client, run)
    assert (tags["m5ws.outcome"], tags["m5ws.note"]) == ("refuted", "x" * 600)
    told = tags["mlflow.note.content"]
    assert "**Why**: the spike goes" in told and f"**Note** (refuted): {'x' * 500}…" in told
    _deliver(tracker, run)
    assert _tags(client, run) == tags


def test_the_ui_of_a_server_has_the_url_of_the_server() -> None:
    server = Mlflow("https://mlflow.example", "tests", "", Path())
    assert (server.ui_argv(5000), server.ui_url(5000)) == ((), "https://mlflow.example")


def test_the_ui_opens_the_runs_of_the_experiment(
    repo: Repository, run: Run, tracker: Mlflow, client: MlflowClient
) -> None:
    _deliver(tracker, _finished(repo, run))
    (known,) = find(client, run.id)
    assert tracker.ui_page() == f"/#/experiments/{client.get_run(known).info.experiment_id}/runs"
    assert Mlflow(tracker.tracking_uri, "another", "", Path()).ui_page() == ""
    assert Mlflow("sqlite:////nowhere/mlflow.db", "tests", "", Path()).ui_page() == ""
