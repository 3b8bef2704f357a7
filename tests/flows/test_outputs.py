"""Output files of a script without a session: there when it is resumed, and out of the store again."""

from pathlib import Path

import pytest

from workspaces import Workspace, make_workspace

_SCRIPT = """
import sys
from pathlib import Path
state = Path("out/deep/state.txt")
begun = int(state.read_text()) if state.exists() else 0
state.parent.mkdir(parents=True, exist_ok=True)
if begun == 0 and "nothing" in sys.argv:
    raise SystemExit(9)
for step in range(begun + 1, 7):
    state.write_text(str(step))
    with open("out/log.txt", "a") as log:
        log.write(f"{step}\\n")
    if step == 3 and begun == 0:
        raise SystemExit(9)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = make_workspace(tmp_path / "w", "plain.py", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text(_SCRIPT)
    return made


def test_a_script_is_given_what_it_wrote_and_goes_on(workspace: Workspace, tmp_path: Path) -> None:
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.strip()
    assert "output files of attempt 1" in workspace.m5ws("run", "--resume", run, "--dry-run").stdout
    workspace.m5ws("run", "--resume", run)
    told = workspace.json("outputs", run, str(tmp_path / "model"))
    assert (told["files"], told["attempt"], told["final"]) == (2, 2, True)
    assert (tmp_path / "model" / "out" / "log.txt").read_text().split() == list("123456")
    shown = workspace.m5ws("show", run).stdout
    assert "outputs-restored" in shown and "input-modified" not in shown
    assert workspace.json("reproduce", run, expect=None)["outcome"]
    assert workspace.m5ws("fsck", "--read-data").returncode == 0


def test_a_resume_that_would_begin_again_is_asked_for(workspace: Workspace, tmp_path: Path) -> None:
    run = workspace.m5ws("run", "--no-progress", "--", "train.py", "nothing", expect=1).stdout.strip()
    assert "no output files" in workspace.m5ws("outputs", run, str(tmp_path / "model"), expect=3).stderr
    refused = workspace.m5ws("run", "--resume", run, expect=2)
    assert "neither a checkpoint nor output files" in refused.stderr and "--from-scratch" in refused.stderr
    workspace.m5ws("run", "--resume", run, "--from-scratch", expect=1)
    assert workspace.history(run).attempts == 2
    assert "--resume" in workspace.m5ws("run", "--from-scratch", expect=2).stderr
