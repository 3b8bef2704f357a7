"""One training on 1, 2 and 4 ranks: equal initial state, and a divergence with its place and cause."""

from pathlib import Path

from tests.support.workspace.workspaces import make_workspace


def test_another_number_of_ranks_starts_with_equal_state_and_diverges_later(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "worlds.py", nproc=2)
    run = workspace.train()
    start = workspace.history(run).states[0][0]
    for nproc in ("1", "4"):
        verdict = workspace.json("reproduce", run, "--nproc", nproc, expect=1)
        assert workspace.history(verdict["replay"]).states[0][0].tensors == start.tensors
        assert verdict["outcome"] == "diverged" and verdict["first"]["step"] >= 1
        assert f"launch nproc: 2 → {nproc}" in verdict["sentence"]
