"""A run that is killed between the copy of a checkpoint and its upload continues from the copies, if all are left."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.references import checkpoints
from m5ws.runs import history
from tests.support.machine.agents import NODES, Agents
from tests.support.workspace.workspaces import Workspace, make_workspace

_KILL = """
import os
import m5ws
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime import context
_written = checkpointing._Saving._written
def written(self):
    if self.moment.step == 8 and self.active.context.attempt == 1 and self.active.repo is context.active().repo:
        os.kill(os.getpid(), 9)  # the copies on all nodes are complete, and no byte is uploaded
    return _written(self)
checkpointing._Saving._written = written
"""


def _workspace(root: Path, local: str, *, ranks: int, run: str = "") -> Workspace:
    """Return a workspace whose first attempt is killed when the checkpoint after step 8 is in the copies alone."""
    workspace = make_workspace(root, "fsdp.py", nproc=ranks, run=run)
    workspace.edit("train.py", "\nimport m5ws\n", f"\n{_KILL}")
    text = (workspace.root / "m5ws.toml").read_text()
    (workspace.root / "m5ws.toml").write_text(f'{text}\n[checkpoint]\nlocal = "{local}"\n')
    return workspace


def _check(workspace: Workspace, run: str, begun: list[tuple[int, int]]) -> None:
    recorded = history.load(workspace.repo, run)
    assert (sorted(recorded.contents), recorded.begun, recorded.outcome) == ([4, 8, 10], begun, "finished")
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.parametrize(
    ("disk", "next_attempt"),
    [("kept", "resume"), pytest.param("replaced", "resume", marks=pytest.mark.long),
     pytest.param("kept", "restart", marks=pytest.mark.long)],
)  # fmt: skip
def test_a_run_continues_from_a_copy_that_was_not_uploaded(tmp_path: Path, disk: str, next_attempt: str) -> None:
    folder = tmp_path / "nvme"
    restart = "restart = { max = 1 }" if next_attempt == "restart" else ""
    workspace = _workspace(tmp_path / "w", str(folder), ranks=1, run=restart)
    done = workspace.m5ws("run", "--no-progress", expect=0 if restart else 1)
    run = done.stdout.split()[-1]
    if disk == "replaced":
        shutil.rmtree(folder)
    if not restart:
        workspace.m5ws("resume", run)
    _check(workspace, run, [(0, 1), (8 if disk == "kept" else 4, 2)])
    assert list(folder.glob(f"*/{run}")) == []


def test_a_machine_without_the_variable_of_the_nodes_resumes_without_copies(tmp_path: Path) -> None:
    workspace = _workspace(tmp_path / "w", str(tmp_path / "nvme"), ranks=1)
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.split()[-1]
    settings = workspace.root / "m5ws.toml"
    settings.write_text(settings.read_text().replace(str(tmp_path / "nvme"), "$NO_SUCH_DISK"))
    done = workspace.m5ws("resume", run)
    assert "lacks a variable of [checkpoint] local = '$NO_SUCH_DISK'" in done.stderr
    _check(workspace, run, [(0, 1), (4, 2)])


def test_copies_of_a_removed_run_are_not_published(tmp_path: Path) -> None:
    workspace = _workspace(tmp_path / "w", str(tmp_path / "nvme"), ranks=1)
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.split()[-1]
    workspace.m5ws("rm", run)
    assert "was removed" in workspace.m5ws("resume", run, expect=None).stderr
    assert [checkpoints.step_of(name) for name in checkpoints.names(workspace.repo, run)] == [4]


@pytest.mark.long
@pytest.mark.parametrize("replaced", [None, 1])
def test_agents_continue_from_the_copies_of_all_nodes(
    tmp_path: Path, cluster: Callable[[Workspace], Agents], replaced: int | None
) -> None:
    disks = {node: {"DISK": str(tmp_path / f"disk-{node}")} for node in range(NODES)}
    workspace = _workspace(tmp_path / "w", "$DISK/copies", ranks=2)
    nodes = cluster(workspace)
    nodes.start("first", disks)
    assert nodes.end() == [1, 1]
    assert nodes.published() == [4]
    if replaced is not None:
        shutil.rmtree(disks[replaced]["DISK"])
    nodes.start("second", disks)
    assert nodes.end() == [0, 0]
    _check(workspace, nodes.run, [(0, 1), (8 if replaced is None else 4, 2)])
    assert [list(Path(disk["DISK"]).glob(f"copies/*/{nodes.run}")) for disk in disks.values()] == [[], []]
