"""A run whose results are not all in the store has not finished: status 5, and nothing is lost."""

from pathlib import Path
from typing import Any

import pytest

from m5ws.launches import UNSAVED
from m5ws.operations import saved_outputs
from workspaces import Workspace, make_workspace

_AWAY = """
import os
from pathlib import Path
from m5ws.training import checkpointing, context
checkpointing._PAUSE_S = 0.01
def away():
    store = Path(context.active().context.store)
    if store.exists():
        os.rename(store, store.with_name("away"))
from m5ws.repository import checkpoints
_publish = checkpoints.publish
def publish(repo, checkpoint, began=None):
    if checkpoint.step == 10 and checkpoint.attempt == 1 and "unsaved" not in repo.store.url:
        away()
    return _publish(repo, checkpoint, began)
checkpoints.publish = publish
"""


def _back(workspace: Workspace) -> None:
    home = workspace.root / ".m5ws"
    (home / "away").rename(home / "store")


def _run(workspace: Workspace) -> tuple[str, str]:
    done = workspace.m5ws("run", "--no-progress", expect=5)
    return done.stdout.strip(), done.stderr


@pytest.fixture
def unsaved(tmp_path: Path) -> tuple[Workspace, str]:
    """A run whose store went away in its last save, and is back."""
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("train.py", "\nimport m5ws\n", f"\nimport m5ws\n{_AWAY}")
    run, said = _run(workspace)
    assert "unsaved" in said and "after step 10" in said and f"--resume {run}" in said
    _back(workspace)
    return workspace, run


def test_a_last_checkpoint_that_was_kept_is_stored_by_the_next_command(unsaved: tuple[Workspace, str]) -> None:
    workspace, run = unsaved
    shown = workspace.m5ws("show", run).stdout
    assert "attempt 1: finished" in shown and "0000000010-0001" in shown and "kept on this machine" in shown
    assert "has finished" in workspace.m5ws("run", "--resume", run, expect=2).stderr
    assert workspace.m5ws("fsck", "--read-data").returncode == 0
    assert not (workspace.root / ".m5ws" / "runs" / run / "0001" / UNSAVED).exists()


def test_a_run_whose_last_checkpoint_is_lost_is_resumed(unsaved: tuple[Workspace, str]) -> None:
    workspace, run = unsaved
    for path in (workspace.root / ".m5ws" / "runs" / run / "0001" / UNSAVED).rglob("runs/*/checkpoints/*"):
        path.unlink()
    assert "unsaved" in workspace.m5ws("ls").stdout
    workspace.m5ws("run", "--resume", run)
    history = workspace.history(run)
    assert (sorted(history.contents), history.begun, history.outcome) == ([4, 8, 10], [(0, 1), (8, 2)], "finished")
    assert workspace.m5ws("fsck").returncode == 0


def test_a_store_that_is_away_when_the_script_ends_gets_the_ledger_later(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("train.py", "\nimport m5ws\n", f"\nimport m5ws\n{_AWAY.replace('checkpoint.step == 10', 'False')}")
    text = (workspace.root / "train.py").read_text()
    (workspace.root / "train.py").write_text(f"{text}\naway()\n")
    run, said = _run(workspace)
    assert "whole ledger" in said
    _back(workspace)
    assert "attempt 1: finished" in workspace.m5ws("show", run).stdout


def test_output_files_that_the_store_did_not_take_are_stored_later(
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
    store = workspace.root / ".m5ws" / "store"
    publish = saved_outputs.publish

    def away(*given: Any) -> Any:
        if store.exists():
            store.rename(store.with_name("away"))
        return publish(*given)

    with monkeypatch.context() as patched:
        patched.setattr(saved_outputs, "publish", away)
        run, said = _run(workspace)
    assert "output files" in said
    _back(workspace)
    assert "attempt 1: finished" in workspace.m5ws("show", run).stdout
    assert workspace.history(run).outputs is not None
    assert workspace.m5ws("fsck", "--read-data").returncode == 0
