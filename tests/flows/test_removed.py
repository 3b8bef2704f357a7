"""A colleague removes a run that trains: it stops with status 6, and its work stays on its machine until a drop."""

from pathlib import Path
from typing import Any

import pytest

from m5ws.outputs import storing
from m5ws.records.removal import Removal
from m5ws.repository import removals
from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints, outputs, runs
from tests.support.workspace.workspaces import Workspace, make_workspace

_REMOVED = """
from m5ws.records.removal import Removal
from m5ws.repository import removals
from m5ws.repository.references import checkpoints
_publish = checkpoints.publish
def publish(repo, checkpoint, began=None):
    if checkpoint.step == 8 and "unsaved" not in repo.store.url:
        removals.publish(repo, Removal(run=checkpoint.run, author="Ada", created_s=1.0))
    return _publish(repo, checkpoint, began)
checkpoints.publish = publish
"""


def _stopped(workspace: Workspace) -> tuple[str, str]:
    """Run until the removal, and return the run's id and the error."""
    done = workspace.m5ws("run", "--no-progress", expect=6)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "was removed by Ada" in errors[0]
    return done.stdout.strip(), done.stderr


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Workspace, str]:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=2)
    workspace.edit("train.py", "\nimport m5ws\n", f"\nimport m5ws\n{_REMOVED}")
    return workspace, _stopped(workspace)[0]


def test_the_checkpoint_of_a_removed_run_is_kept_until_it_is_dropped(trained: tuple[Workspace, str]) -> None:
    workspace, run = trained
    shown = workspace.m5ws("show", run).stdout
    assert "the checkpoint after step 8" in shown and f"m5ws rm {run} --drop" in shown and "removed by Ada" in shown
    assert run in workspace.m5ws("ls").stderr
    assert "was removed" in workspace.m5ws("resume", run, expect=6).stderr
    assert "was removed" in workspace.m5ws("reproduce", run, expect=6).stderr
    for _ in range(2):
        workspace.m5ws("gc", "--older-than", "0s", "--grace", "0s")
    assert "the checkpoint after step 8" in workspace.m5ws("show", run).stdout
    assert checkpoints.names(workspace.repo, run) == [] and fsck.check(workspace.repo).clean
    workspace.m5ws("fork", run, "--no-progress")
    (fork,) = (each for each in runs.ids(workspace.repo) if each != run)
    assert workspace.history(fork).outcome == "finished" and workspace.history(fork).last_step == 10
    assert workspace.history(fork).by_steps and min(workspace.history(fork).contents) == 10
    workspace.m5ws("rm", run, "--drop")
    for _ in range(2):
        workspace.m5ws("gc", "--older-than", "0s", "--grace", "0s")
    assert fsck.check(workspace.repo).clean
    assert "reproduced" in workspace.m5ws("reproduce", fork).stdout.lower()
    assert "kept on this machine: attempt" not in workspace.m5ws("show", run).stdout
    assert "removed run" not in workspace.m5ws("ls").stderr
    assert "keeps no work" in workspace.m5ws("rm", run, "--drop", expect=2).stderr


def test_output_files_of_a_removed_run_are_not_stored_and_stay_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=1, run='outputs = ["out"]')
    for old, new in (
        ("import mlflow", "from types import SimpleNamespace"),
        ("with mlflow.start_run():", "if True:"),
        ("mlflow.log_metric(", "print("),
        (", step=step)", ")"),
    ):
        workspace.edit("train.py", old, new)
    record = storing.record

    def remove(repo: Any, run: Any, *given: Any) -> Any:
        if run.id not in removals.removed_runs(repo):
            removals.publish(repo, Removal(run=run.id, author="Ada", created_s=1.0))
        return record(repo, run, *given)

    with monkeypatch.context() as patched:
        patched.setattr(storing, "record", remove)
        run, _ = _stopped(workspace)
    assert outputs.names(workspace.repo, run) == []
    shown = workspace.m5ws("show", run).stdout
    folder = workspace.root / ".m5ws" / "runs" / run / "0001" / "work"
    assert f"the files in {folder}" in shown and any((folder / "out").iterdir())
    workspace.m5ws("rm", run, "--drop")
    assert not folder.exists()
