"""A user's own job at a small size: resumed once by `preflight`, and compared with an earlier result by `canary`."""

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from m5ws.repository import removals
from m5ws.repository.references import runs
from tests.support.workspace.checkouts import commit_all, write
from tests.support.workspace.workspaces import Workspace

_SCRIPT = """\
import os
import torch
import m5ws

if os.path.exists("{fault}"):
    multiply, products = torch.matmul, []

    def damaged(first, second):
        product = multiply(first, second)
        products.append(product)
        if len(products) == 3:
            product.data.view(torch.int32)[0, 0] ^= 1
        return product

    torch.matmul = damaged

m5ws.seed(7)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in m5ws.session(model, optimizer, total_steps=1000).steps():
    torch.matmul(torch.randn(4, 3), model.weight.T).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "w"
    settings = '[mlflow]\nenabled = false\n[run]\ncommand = ["train.py"]\n'
    script = _SCRIPT.format(fault=tmp_path / "fault")
    write(root, {"train.py": script, "m5ws.toml": settings, ".gitignore": ".m5ws/\n"})
    commit_all(root)
    return Workspace(root)


def _snapshot(workspace: Workspace) -> str:
    return workspace.m5ws("snapshot").stdout.strip()


def test_a_canary_names_the_host_the_step_and_the_changed_environment(workspace: Workspace, tmp_path: Path) -> None:
    snapshot = _snapshot(workspace)
    good: list[Any] = [workspace.json("canary", "--steps", "4")["result"] for _ in range(3)]
    assert [each["outcome"] for each in good] == ["ok"] * 3 and len({each["digest"] for each in good}) == 1
    # The reference and the last good run stay.
    assert removals.removed_runs(workspace.repo) == {good[1]["run"]}
    (tmp_path / "fault").touch()
    changed = {"NCCL_P2P_DISABLE": "1"}
    done = workspace.m5ws("canary", "--steps", "4", expect=1, environment=changed)
    assert "diverged on " in done.stdout and f"run {good[0]['run']}: step 3, rank 0" in done.stdout
    assert "NCCL_P2P_DISABLE" in done.stdout
    history = json.loads(workspace.m5ws("canary", "history", snapshot, "--json").stdout)
    assert [each["outcome"] for each in history["results"]] == ["ok", "ok", "ok", "diverged"]
    (turn,) = history["turns"]
    assert (turn["good"]["run"], turn["bad"]["host"]) == (good[2]["run"], good[0]["host"])
    assert [change["name"] for change in turn["changes"]] == ["variable.NCCL_P2P_DISABLE"]
    assert workspace.json("canary", "--steps", "5")["result"]["detail"] == "the reference of this kind"


def test_a_canary_that_cannot_train_has_failed(workspace: Workspace) -> None:
    workspace.edit("train.py", "m5ws.seed(7)", "raise SystemExit('no disk')")
    _snapshot(workspace)
    result = workspace.json("canary", expect=1)["result"]
    assert result["outcome"] == "failed" and "no disk" in result["detail"]
    assert runs.load(workspace.repo, result["run"]).name == "canary"


@pytest.fixture
def few_files() -> Iterator[None]:
    """A limit of open files that is enough for this process, and too low for 32 ranks."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_files")
def test_a_node_that_fails_its_checks_begins_no_attempt(workspace: Workspace) -> None:
    workspace.edit("m5ws.toml", "[run]", '[run]\npreflight = "node"')
    done = workspace.m5ws("run", "--nproc", "32", expect=1)
    assert f"node {socket.gethostname()} failed its checks: open files: 2,000, 2,304 needed" in done.stderr
    assert runs.ids(workspace.repo) == []
