"""Checkpoints of real runs: equal runs have equal checkpoints, and an export has the model's other files too."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[str]]:
    """Two runs of one snapshot on two ranks."""
    workspace = make_workspace(tmp_path_factory.mktemp("trained") / "place", "fsdp.py")
    (workspace.root / "model").mkdir()
    (workspace.root / "model" / "config.json").write_text('{"model_type": "small", "hidden": 32}')
    workspace.edit("config.yaml", "hidden: 128", "hidden: 32")
    git(workspace.root, "add", ".")
    git(workspace.root, "commit", "-m", "a model's configuration")
    return workspace, [workspace.train("--nproc", "2") for _ in range(2)]


def test_runs_of_one_snapshot_have_equal_checkpoints(trained: tuple[Workspace, list[str]]) -> None:
    workspace, (first, same) = trained
    for step in ("4", "8", "10"):
        done = workspace.m5ws("checkpoint", "diff", f"{first}@{step}", f"{same}@{step}")
        assert "no difference" in done.stdout
    diff = json.loads(workspace.m5ws("checkpoint", "diff", "--json", f"{first}@4", f"{first}@8", expect=1).stdout)
    assert diff["tensors"] and all(change["a"] and change["b"] for change in diff["tensors"])
    assert "buffer.scale" not in {change["name"] for change in diff["tensors"]}
    assert {"generators.torch", "feed.loader.numbers"} <= {first["path"] for first in diff["state"]}


def test_an_export_for_hugging_face_has_the_model_and_its_tokenizer(
    trained: tuple[Workspace, list[str]], tmp_path: Path
) -> None:
    workspace, (run, _) = trained
    workspace.m5ws("checkpoint", "export", f"{run}@8", "--format", "hf", str(tmp_path / "model"))
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "model.safetensors", "config.json", "tokenizer.json", "m5ws-checkpoint.json"
    }  # fmt: skip
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "small"
    tokenizer = (workspace.root / "tokenizer" / "tokenizer.json").read_bytes()
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == tokenizer
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    layers = ("down", "embed", "head", "norm", "up")
    assert {name.partition(".")[0] for name in tensors} == {"scale", *layers}
