"""A run at determinism level "portable": trained, reproduced, and distinguished from one at another level."""

from pathlib import Path

import pytest
import torch

from tests.support.workspace.workspaces import make_workspace


@pytest.mark.long
def test_a_portable_run_is_reproduced_and_a_strict_replay_of_it_names_the_level(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    settings = workspace.root / "m5ws.toml"
    settings.write_text(settings.read_text() + '\n[determinism]\nlevel = "portable"\n')
    portable = workspace.train()
    verdict = workspace.json("reproduce", portable, expect=0)
    assert verdict["outcome"] == "reproduced" and verdict["changes"] == []
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        settings.write_text(settings.read_text().replace("portable", "strict"))
        strict = workspace.json("snapshot")["id"]
        diverged = workspace.json("reproduce", portable, "--snapshot", strict, expect=1)
        assert diverged["outcome"] == "diverged"
        assert ("determinism", "level") in {(change["part"], change["name"]) for change in diverged["changes"]}
