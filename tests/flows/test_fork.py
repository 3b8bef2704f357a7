"""Runs that start from another run's checkpoint: the same bits without changes, and changes take effect."""

from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.runs import listing
from m5ws.store.local import LocalStore
from tests.support.ranks.base_runs import BaseRuns
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("zero", marks=pytest.mark.long)])
def test_a_fork_continues_bit_for_bit_and_changed_settings_apply_at_once(
    kind: str, base_runs: BaseRuns, tmp_path: Path
) -> None:
    workspace, run = base_runs.copy(kind, 2, tmp_path)
    parent = workspace.history(run)
    fork = workspace.json("fork", f"{run[:6]}@4", "--name", "again")["run"]
    assert (fork["parent"]["run"], fork["parent"]["step"], fork["parent"]["settings"]) == (run, 4, "checkpoint")
    same = workspace.history(fork["id"])
    assert sorted(same.contents) == [8, 10]
    assert {step: parent.contents[step] for step in same.contents} == same.contents
    for rank in (0, 1):
        assert list(same.steps[rank]) == list(range(5, 11))
        for number, step in same.steps[rank].items():
            before = parent.steps[rank][number]
            assert (step.quantities, step.batch) == (before.quantities, before.batch)

    second = workspace.json("fork", f"{run}@4", "--set", "learning_rate=0.02")["run"]["id"]
    changed = workspace.history(second)
    # Weights and data of step 5 are the parent's. Its update and all later steps differ.
    assert changed.steps[0][5].quantities["loss"] == parent.steps[0][5].quantities["loss"]
    assert changed.steps[0][5].batch == parent.steps[0][5].batch
    assert changed.steps[0][6].quantities["loss"] != parent.steps[0][6].quantities["loss"]
    rates = [float.fromhex(step.quantities["lr"]) for step in changed.steps[0].values()]
    assert rates == [0.02 * (1.0 / (1 + number / 10)) for number in changed.steps[0]]
    (notice,) = [notice for notice in changed.notices if notice.kind == "fork"]
    assert f"lr of group 0: {0.02 * (1.0 / (1 + 4 / 10))!r}" in notice.message
    changes = workspace.json("diff", run, second)["changes"]
    assert {(change["part"], change["name"]) for change in changes} == {("config", "learning_rate"), ("launch", "from")}


@pytest.fixture(scope="module")
def forked(base_runs: BaseRuns, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str, str]:
    """A workspace with a run of one process, and a fork of its last checkpoint."""
    workspace, run = base_runs.copy("fsdp", 1, tmp_path_factory.mktemp("forked"))
    fork = workspace.json("fork", run, "--set", "steps=12")["run"]["id"]
    assert sorted(workspace.history(fork).steps[0]) == [11, 12]
    return workspace, run, fork


def test_a_fork_of_a_fork_on_more_ranks_shows_its_lineage(forked: tuple[Workspace, str, str]) -> None:
    workspace, run, first = forked
    second = workspace.json("fork", f"{first}@12", "--set", "steps=13", "--nproc", "2")["run"]["id"]
    history = workspace.history(second)
    assert sorted(history.steps[0]) == [13] and history.world == 2
    assert any("made by 1 ranks" in notice.message for notice in history.notices)
    view = listing.view_run(workspace.repo, second)
    assert [(parent.run, parent.step) for parent in view.lineage] == [(first, 12), (run, 10)]
    story = f"after step 12 of run {first}, which starts after step 10 of run {run}"
    assert story in workspace.m5ws("show", second).stdout
    assert story in workspace.m5ws("diff", run, second).stdout
    assert first in workspace.m5ws("show", run).stdout and f"from {run}@10" in workspace.m5ws("ls").stdout


def test_a_fork_with_a_script_without_a_session_fails(forked: tuple[Workspace, str, str]) -> None:
    workspace, run, _ = forked
    (workspace.root / "plain.py").write_text("print('trained from nothing')\n")
    snapshot = workspace.json("snapshot")["id"]
    failed = workspace.m5ws("fork", f"{run}@4", "--snapshot", snapshot, "--", "plain.py", expect=1)
    assert "uses no m5ws.session" in failed.stderr


def test_a_fork_copied_without_its_parent_can_be_reproduced(forked: tuple[Workspace, str, str], tmp_path: Path) -> None:
    workspace, run, fork = forked
    target = Repository.create(LocalStore(tmp_path / "target"))
    transfer.copy(workspace.repo, target, [("run", fork)])
    report = fsck.check(target)
    assert report.clean and report.runs == 1
    view = listing.view_run(target, fork)
    assert view.lineage[0].run == run and not view.lineage_whole
    elsewhere = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    elsewhere.m5ws("pull", "--from", str(tmp_path / "target"), fork)
    verdict = elsewhere.json("reproduce", fork, expect=0)
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["checkpoints"] == 1
    (given,) = verdict["not_compared"]
    assert (given["kind"], given["step"], given["digest"]) == ("steps before the fork", 10, view.lineage[0].digest)
