"""Run and reproduce, for real: the same bits without changes, and the named change with one."""

from typing import Any

import pytest

from tests.support.ranks.base_runs import BaseRuns
from tests.support.workspace.workspaces import Workspace


@pytest.fixture(scope="module", params=["fsdp", pytest.param("zero", marks=pytest.mark.long)])
def trained(
    request: pytest.FixtureRequest, base_runs: BaseRuns, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, str]:
    """Return a workspace with one finished run on 2 processes, and the run's id."""
    return base_runs.copy(request.param, 2, tmp_path_factory.mktemp(request.param))


def _replay(trained: tuple[Workspace, str], *options: str, expect: int | None) -> Any:
    workspace, run = trained
    return workspace.json("reproduce", run, *options, expect=expect)


def test_an_unchanged_replay_is_reproduced_in_every_step_state_and_checkpoint(trained: tuple[Workspace, str]) -> None:
    workspace, run = trained
    verdict = _replay(trained, expect=0)
    assert verdict["outcome"] == "reproduced" and verdict["first"] is None and verdict["changes"] == []
    assert verdict["compared"]["steps"] == 2 * 10
    assert verdict["compared"]["checkpoints"] == 3
    assert verdict["not_compared"] == []
    original, replay = workspace.history(run), workspace.history(verdict["replay"])
    assert original.contents == replay.contents and sorted(original.contents) == [4, 8, 10]


_ONE_WAY = pytest.mark.parametrize("trained", ["fsdp"], indirect=True)
"""Changes whose names do not depend on the way of training."""


def test_a_changed_learning_rate_is_named(trained: tuple[Workspace, str]) -> None:
    verdict = _replay(trained, "--set", "learning_rate=0.02", expect=1)
    assert verdict["outcome"] == "diverged"
    assert (verdict["first"]["step"], verdict["first"]["quantity"]) == (1, "lr")
    assert verdict["first"]["tensor"].startswith("m") and verdict["first"]["tensor_step"] == 1
    assert [(change["part"], change["name"]) for change in verdict["changes"] if change["part"] == "config"] == [
        ("config", "learning_rate")
    ]
    assert "learning_rate" in verdict["sentence"]


@_ONE_WAY
def test_a_changed_seed_is_named(trained: tuple[Workspace, str]) -> None:
    verdict = _replay(trained, "--seed", "8", expect=1)
    assert verdict["outcome"] == "diverged" and verdict["first"]["step"] == 0
    assert verdict["first"]["tensor"] is not None and "seed" in verdict["sentence"]


@_ONE_WAY
def test_a_changed_torch_setting_is_not_comparable_without_env_warn(trained: tuple[Workspace, str]) -> None:
    """Another vector capability of torch, as on another machine or by a variable."""
    workspace, run = trained
    variables = {"ATEN_CPU_CAPABILITY": "default"}
    refused = workspace.m5ws("reproduce", run, "--json", expect=2, environment=variables)
    assert '"not comparable"' in refused.stdout and "ATEN_CPU_CAPABILITY" in refused.stdout
    allowed = workspace.m5ws("reproduce", run, "--env", "warn", "--json", expect=1, environment=variables)
    assert '"diverged"' in allowed.stdout and "ATEN_CPU_CAPABILITY" in allowed.stdout
