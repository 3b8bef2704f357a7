"""Tags, parameters and the description, as functions of a snapshot; MLflow's limits are kept."""

from pathlib import Path

import msgspec
import pytest
from mlflow.utils.validation import _validate_param, _validate_tag

from m5ws.config.flatten import flatten
from m5ws.records.cause import Cause
from m5ws.records.incident import Incident
from m5ws.records.reasons import Unreadable
from m5ws.records.snapshot import Dataset
from m5ws.records.verdict import Verdict
from m5ws.repository.references import incidents
from m5ws.repository.repository import Repository
from m5ws.tracking.mlflow import description, tags
from m5ws.tracking.mlflow import params as mlflow_params
from tests.support.records import mlflow_runs as written


def _subject(repo: Repository, tmp_path: Path, config: str = written.CONFIG) -> tags.Subject:
    run = written.publish_run(repo, written.publish_snapshot(repo, tmp_path, config=config))
    written.begin(repo, run)
    return tags.load(repo, run.id)


def test_the_tag_of_many_datasets_is_one_line_and_changes_with_any_dataset(repo: Repository, tmp_path: Path) -> None:
    subject = _subject(repo, tmp_path)
    sets = tuple(Dataset(name=f"part {i}", kind="files", tree=f"{i:064x}", size_bytes=1) for i in range(1000))
    lines = set()
    for datasets in (sets, (*sets[:-1], msgspec.structs.replace(sets[-1], tree="f" * 64))):
        other = msgspec.structs.replace(subject.snapshot, datasets=datasets)
        lines.add(tags.tags(msgspec.structs.replace(subject, snapshot=other))["m5ws.data"])
    assert len(lines) == 2
    assert all(line.startswith("1000-datasets=") and " " not in line for line in lines)


def test_odd_and_long_config_keys_and_values_fit_mlflow(repo: Repository, tmp_path: Path) -> None:
    deep = "a" * 300
    config = f"'x/../y': 1\n'naïve (β)': [1, {{z: 2}}]\n{deep}: {'v' * 7000}\nempty: {{}}\n/: 3\ndate: 2026-01-02\n"
    params = mlflow_params.params(repo, _subject(repo, tmp_path, config))
    for key, value in params.items():
        _validate_param(key, value)  # type: ignore[no-untyped-call]
    odd = {key.rpartition("-")[0]: value for key, value in params.items() if key.startswith("naïve _β_.")}
    assert odd == {"naïve _β_.0": "1", "naïve _β_.1.z": "2"}
    assert params["empty"] == "{}"
    assert any(len(value) <= 6000 and "sha256" in value for value in params.values())


def test_parameters_have_the_keys_that_diff_and_set_have(repo: Repository, tmp_path: Path) -> None:
    config = "a: {b: [1, [2, 3]], c: {}}\nd: text\n"
    params = mlflow_params.params(repo, _subject(repo, tmp_path, config))
    keys = {key for key in params if not key.startswith(("args.", "launch."))}
    assert keys == set(flatten("c.yaml", config.encode()) or ())
    assert (params["a.b.1.0"], params["d"]) == ("2", "text")


def test_arguments_are_parameters_beside_config_keys_of_the_same_name(repo: Repository, tmp_path: Path) -> None:
    subject = _subject(repo, tmp_path, "lr: 1\n")
    spec = msgspec.structs.replace(subject.run.spec, command=("train.py", "opt.betas=[1,2]", "--lr", "2", "--fast"))
    run = msgspec.structs.replace(subject.run, spec=spec)
    params = mlflow_params.params(repo, msgspec.structs.replace(subject, run=run))
    names = ("lr", "args.lr", "args.fast", "args.opt.betas")
    assert [params[name] for name in names] == ["1", "2", "true", "[1,2]"]
    assert params["launch.command"] == "train.py opt.betas=[1,2] --lr 2 --fast"


@pytest.mark.parametrize("config", ["{", "a: [", "- 1\n- 2\n", "", "just text", "a: &x [*x]\n"])
def test_a_config_that_is_no_mapping_is_no_error(repo: Repository, tmp_path: Path, config: str) -> None:
    params = mlflow_params.params(repo, _subject(repo, tmp_path, config))
    assert params["launch.nproc"] == "2"


def test_the_newest_failure_of_a_run_is_in_its_tags(repo: Repository, tmp_path: Path) -> None:
    subject = _subject(repo, tmp_path)
    assert tags.cause_tags(subject) == {}
    cause = Cause(
        kind="gpu-lost", level="root", title="a GPU is lost", owner="infrastructure", retry=True, advice="Drain it.",
        rank="3", line=1, evidence=(), others={},
    )  # fmt: skip
    incident = Incident(run=subject.run.id, attempt=1, time_s=1.0, outcome="failed", step=5, cause=cause, host="n17")
    incidents.publish(repo, incident)
    incidents.publish(repo, msgspec.structs.replace(incident, attempt=2, cause=None, memory=("The second.", "x")))
    later = msgspec.structs.replace(incident, attempt=3)
    assert tags.cause_tags(tags.load(repo, subject.run.id)) == {
        "m5ws.cause": "unknown: no rule matches, attempt 2",
        "m5ws.cause_advice": "absent",
        "m5ws.cause_earlier": "The second. x",
    }
    incidents.publish(repo, later)
    assert tags.cause_tags(tags.load(repo, subject.run.id)) == {
        "m5ws.cause": "gpu-lost: a GPU is lost (rank 3, n17), attempt 3",
        "m5ws.cause_advice": "Drain it. Owner: infrastructure. A restart may help.",
        "m5ws.cause_earlier": "absent",
    }


def test_a_description_keeps_text_written_by_people(repo: Repository, tmp_path: Path) -> None:
    subject = _subject(repo, tmp_path)
    once = description.placed("above\n\nbelow", description.describe_run(subject, []))
    edited = f"intro\n\n{once}"
    verdict = Verdict(
        run=subject.run.id, replay="0" * 12, outcome="not comparable", reasons=(Unreadable(problem="another GPU"),)
    )
    again = description.placed(edited, description.describe_run(subject, [verdict]))
    assert again.startswith("intro\n\n")
    assert again.endswith("above\n\nbelow")
    assert again.count(subject.run.snapshot[:16]) == 1
    assert "**not comparable** by run `000000000000`: another GPU" in again
    _validate_tag(tags.NOTE_TAG, again)  # type: ignore[no-untyped-call]
