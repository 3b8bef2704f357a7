"""References exchanged between real runs: no verdict uses them, and no command shows them."""

from pathlib import Path

from m5ws.repository import checkpoints
from tests.support.ranks.base_runs import BaseRuns
from tests.support.workspace.workspaces import Workspace


def _copied(workspace: Workspace, source: str, target: str) -> None:
    """Put the bytes of one reference under the key of another."""
    store = workspace.root / ".m5ws" / "store"
    data = (store / source).read_bytes()
    # Copies of a run share the files of their stores.
    (store / target).unlink()
    (store / target).write_bytes(data)


def test_exchanged_checkpoints_and_verdicts_of_real_runs_are_refused(base_runs: BaseRuns, tmp_path: Path) -> None:
    workspace, run = base_runs.copy("fsdp", 2, tmp_path)
    second = workspace.train("--set", "learning_rate=0.5")
    equal = workspace.json("reproduce", run)
    diverged = workspace.json("reproduce", run, "--set", "learning_rate=0.5", "--no-recheck", expect=1)
    assert (equal["outcome"], diverged["outcome"]) == ("reproduced", "diverged")
    assert workspace.m5ws("fsck").returncode == 0

    _copied(workspace, f"runs/{equal['replay']}/verdict", f"runs/{diverged['replay']}/verdict")
    rows = workspace.m5ws("ls", "--runs").stdout.splitlines()
    (row,) = [row for row in rows if row.lstrip().startswith(diverged["replay"])]
    # The run index has the outcome of the published verdict. All that read the record report the other one.
    assert "diverged" in row and ": reproduced" not in row
    assert any(row.startswith(run) and "damaged" not in row for row in rows)
    workspace.m5ws("show", diverged["replay"], expect=3)

    label = checkpoints.name(8, 1)
    _copied(workspace, checkpoints.key(second, label), checkpoints.key(run, label))
    damage = {problem["key"] for problem in workspace.json("fsck", expect=1)["damage"]}
    assert damage == {checkpoints.key(run, label), f"runs/{diverged['replay']}/verdict"}
    verdict = workspace.json("reproduce", run, expect=2)
    assert (verdict["outcome"], verdict["compared"]) == ("not comparable", {})
    assert checkpoints.key(run, label) in verdict["reason"]
    workspace.m5ws("reproduce", run, "--segment", "2", expect=3)
    for verb in (("checkpoint", "show"), ("run", "--from")):
        workspace.m5ws(*verb, f"{run}@8", expect=3)
