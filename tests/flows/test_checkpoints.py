"""Checkpoints of real runs: equal runs have equal checkpoints, and an export has the model's other files too."""

import json
from pathlib import Path

import pytest

from tests.support.files import safetensors_reader
from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[str]]:
    """Two runs of one snapshot on two ranks, and one of it on a single rank."""
    workspace = make_workspace(tmp_path_factory.mktemp("trained") / "place", "fsdp.py")
    (workspace.root / "model").mkdir()
    (workspace.root / "model" / "config.json").write_text('{"model_type": "small", "hidden": 32}')
    workspace.edit("config.yaml", "hidden: 128", "hidden: 32")
    git(workspace.root, "add", ".")
    git(workspace.root, "commit", "-m", "a model's configuration")
    return workspace, [workspace.train("--nproc", ranks) for ranks in ("2", "2", "1")]


def test_runs_of_one_snapshot_have_equal_checkpoints(trained: tuple[Workspace, list[str]]) -> None:
    workspace, (first, same, _) = trained
    for step in ("4", "8", "10"):
        done = workspace.m5ws("checkpoint", "diff", f"{first}@{step}", f"{same}@{step}")
        assert "no difference" in done.stdout
    diff = json.loads(workspace.m5ws("checkpoint", "diff", "--json", f"{first}@4", f"{first}@8", expect=1).stdout)
    assert diff["tensors"] and all(change["a"] and change["b"] for change in diff["tensors"])
    assert "buffer.scale" not in {change["name"] for change in diff["tensors"]}
    assert {"generators.torch", "feed.loader.numbers"} <= {first["path"] for first in diff["state"]}


def test_another_number_of_ranks_is_compared_tensor_by_tensor(trained: tuple[Workspace, list[str]]) -> None:
    workspace, (two, _, alone) = trained
    diff = json.loads(workspace.m5ws("checkpoint", "diff", "--json", two, alone, expect=1).stdout)
    moved = {change["name"]: change for change in diff["tensors"]}
    # With other ranks the batches and the weights differ, and untrained state is equal.
    assert "model.up.weight" in moved and all(change["a"] and change["b"] for change in moved.values())
    assert diff["tensors_equal"] > 0 and "optimizer.up.weight.step" not in moved
    assert any("ranks" in note and "2" in note and "1" in note for note in diff["notes"])


def test_an_export_for_hugging_face_has_the_model_and_its_tokenizer(
    trained: tuple[Workspace, list[str]], tmp_path: Path
) -> None:
    workspace, (run, *_) = trained
    workspace.m5ws("checkpoint", "export", f"{run}@8", "--format", "hf", str(tmp_path / "model"))
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.json", "m5ws-checkpoint.json"
    }  # fmt: skip
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "small"
    tokenizer = (workspace.root / "tokenizer" / "tokenizer.json").read_bytes()
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == tokenizer
    tensors, _ = safetensors_reader.load(tmp_path / "model" / "model.safetensors")
    names = (
        "down.bias",
        "down.weight",
        "embed.weight",
        "head.weight",
        "norm.bias",
        "norm.weight",
        "up.bias",
        "up.weight",
    )
    assert sorted(tensors) == sorted(["scale", *names])


def test_each_checkpoint_of_a_run_is_listed_and_shown(trained: tuple[Workspace, list[str]]) -> None:
    workspace, (run, same, _) = trained
    rows = json.loads(workspace.m5ws("checkpoint", "ls", "--json", run).stdout)["checkpoints"]
    assert [row["step"] for row in rows] == [4, 8, 10]
    assert all(0 < row["new_bytes"] <= row["size_bytes"] and row["counts"] for row in rows)
    again = json.loads(workspace.m5ws("checkpoint", "ls", "--json", same).stdout)["checkpoints"]
    assert [row["content"] for row in again] == [row["content"] for row in rows]
    shown = workspace.m5ws("checkpoint", "show", f"{run}@{rows[0]['name']}").stdout
    assert "model.up.weight" in shown and "generators.torch" in shown and rows[0]["digest"] in shown
