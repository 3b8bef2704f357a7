"""Output files of a script without a session: restored for a resume, and deleted from the store later."""

from pathlib import Path

import pytest

from m5ws.attest import attest
from m5ws.repository.references import checkpoints, outputs
from tests.support.workspace.workspaces import Workspace, make_workspace

_SCRIPT = """
import sys
from pathlib import Path
state = Path("out/deep/state.txt")
begun = int(state.read_text()) if state.exists() else 0
state.parent.mkdir(parents=True, exist_ok=True)
if begun == 0 and "nothing" in sys.argv:
    print("Error executing job\\nomegaconf.errors.ConfigError: no key\\n\\nSet FULL_ERROR=1 for more.")
    raise SystemExit(9)
for step in range(begun + 1, 7):
    state.write_text(str(step))
    with open("out/log.txt", "a") as log:
        log.write(f"{step}\\n")
    if step == 3 and not Path("MARK").exists():
        Path("MARK").touch()
        raise SystemExit(9)
Path("out/counted.txt").write_text(str(6 - begun))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = make_workspace(tmp_path / "w", "plain.py", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text(_SCRIPT.replace("MARK", str(tmp_path / "mark")))
    return made


def test_a_resumed_script_continues_from_its_restored_output_files(workspace: Workspace, tmp_path: Path) -> None:
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.strip()
    assert "output files 0001-0-final of attempt 1" in workspace.m5ws("resume", run, "--dry-run").stdout
    workspace.m5ws("resume", run)
    report = workspace.json("outputs", run, str(tmp_path / "model"))
    assert (report["files"], report["attempt"], report["final"]) == (3, 2, True)
    assert (tmp_path / "model" / "out" / "log.txt").read_text().split() == list("123456")
    shown = workspace.m5ws("show", run).stdout
    assert "outputs-restored" in shown and "input-modified" not in shown
    assert [row["name"] for row in workspace.json("outputs", run, "--copies")["outputs"]] == [
        "0001-0-final",
        "0002-0-final",
    ]
    verdict = workspace.json("reproduce", run, expect=1)
    # The verdict names the value that counts steps of the last attempt alone, and the resume as its cause.
    assert verdict["first"]["sentence"] == "file out/counted.txt: line 1" and verdict["compared"]["files"] == 2
    assert "No recorded change explains the difference" in verdict["sentence"]
    assert verdict["sentence"].endswith("The original was resumed from the output files of an earlier attempt")
    assert workspace.m5ws("fsck", "--read-data").returncode == 0


def test_a_resume_restores_files_of_a_folder_that_is_declared_later(workspace: Workspace) -> None:
    settings = workspace.root / "m5ws.toml"
    declared = settings.read_text()
    settings.write_text(declared.replace('outputs = ["out"]', ""))
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.strip()
    hint = workspace.m5ws("resume", run, expect=2).stderr
    assert (
        "Set outputs in [run] of m5ws.toml" in hint
        and str(workspace.root / ".m5ws" / "runs" / run / "0001" / "work") in hint
    )
    settings.write_text(declared)
    workspace.m5ws("resume", run)
    out = workspace.root / ".m5ws" / "runs" / run / "0002" / "work" / "out"
    assert (out / "log.txt").read_text().split() == list("123456") and (out / "counted.txt").read_text() == "3"
    assert workspace.m5ws("fsck", "--read-data").returncode == 0


def test_a_resume_without_checkpoint_and_output_files_needs_from_scratch(workspace: Workspace, tmp_path: Path) -> None:
    failed = workspace.m5ws("run", "--no-progress", "--", "train.py", "nothing", expect=1)
    run = failed.stdout.strip()
    assert f"`m5ws logs {run}`" in failed.stderr
    assert "no output files" in workspace.m5ws("outputs", run, str(tmp_path / "model"), expect=3).stderr
    refused = workspace.m5ws("resume", run, expect=2)
    assert "neither a checkpoint nor output files" in refused.stderr and "--from-scratch" in refused.stderr
    workspace.m5ws("resume", run, "--from-scratch", expect=1)
    assert workspace.history(run).attempt == 2


_LAST = """
import json, os
os.makedirs("out", exist_ok=True)
with open("out/metrics.json", "w") as file:
    json.dump({"loss": float(loss), "train_runtime": time.time()}, file)
with open("out/chance.txt", "w") as file:
    file.write(os.urandom(8).hex() if "chance" in __import__("sys").argv else "1")
"""


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Return a run with a session that also writes files: 10 steps, with checkpoints after 4, 8 and 10."""
    made = make_workspace(tmp_path_factory.mktemp("stepped") / "w", "fsdp.py", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text((made.root / "train.py").read_text() + _LAST)
    return made, made.train()


def test_output_files_of_a_run_with_steps_are_no_checkpoint(stepped: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace, run = stepped
    listed = workspace.m5ws("checkpoint", "ls", run).stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["4", "8", "10"]
    assert [checkpoints.step_of(name) for name in checkpoints.names(workspace.repo, run)] == [4, 8, 10]
    assert outputs.names(workspace.repo, run) == ["0001-0-final"]
    (row,) = workspace.json("outputs", run)["outputs"]
    assert (row["name"], row["attempt"], row["final"], row["files"]) == ("0001-0-final", 1, True, 2)
    assert "at the end" in workspace.m5ws("outputs", run).stdout
    shown = workspace.json("show", run)
    assert [checkpoint["step"] for checkpoint in shown["checkpoints"]] == [4, 8, 10]
    assert [checkpoint["name"] for checkpoint in shown["outputs"]] == ["0001-0-final"]
    assert "OUTPUT FILES" in workspace.m5ws("show", run).stdout
    assert "after step 10" in workspace.m5ws("fork", run, "--dry-run").stderr
    assert workspace.json("outputs", run, str(tmp_path / "o"))["final"]
    assert workspace.m5ws("fsck", "--read-data").returncode == 0


def test_output_files_never_overrule_the_state(stepped: tuple[Workspace, str]) -> None:
    workspace, run = stepped
    verdict = workspace.json("reproduce", run)
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["checkpoints"] == 3
    assert verdict["sentence"] == (
        "weights, optimizer and 10 steps are equal in every bit; 1 other file differs: out/metrics.json"
    )
    statement = attest.build(workspace.repo, run)
    assert [line.name for line in statement.predicate.outputs] == [f"{run}@0001-0-final"]
    verdict = workspace.json("reproduce", workspace.train("--", "train.py", "chance"))
    assert verdict["outcome"] == "reproduced"
    assert verdict["sentence"].startswith("weights, optimizer and 10 steps are")
    assert "out/chance.txt" in verdict["sentence"]


_FOLDERS = """
import os, sys
from pathlib import Path
found = sorted(Path("out").glob("step-*"))
begun = int(found[-1].name[5:]) if found else 0
if found:
    assert (found[-1] / "optimizer").exists(), "half a checkpoint"
for step in range(begun + 1, 5):
    folder = Path(f"out/step-{step}")
    folder.mkdir(parents=True)
    (folder / "model").write_text(str(step))
    if step == 3 and not found:
        raise SystemExit(9)
    (folder / "optimizer").write_text(str(step))
    if step == 2 and "twice" not in sys.argv and not found:
        raise SystemExit(9)
"""


def test_resume_at_restores_an_earlier_copy_and_from_scratch_restores_no_copy(
    workspace: Workspace, tmp_path: Path
) -> None:
    """The first attempt leaves whole checkpoints, the third half a checkpoint, on which the script fails."""
    (workspace.root / "train.py").write_text(
        _FOLDERS.replace("not found", f"not Path({str(tmp_path / 'mark')!r}).exists()")
    )
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.strip()
    workspace.m5ws("resume", run, expect=1)
    failed = workspace.m5ws("resume", run, expect=1).stderr
    assert "0002-0-final" in failed and f"m5ws outputs {run} --copies" in failed and "--at TIME" in failed
    (tmp_path / "mark").touch()
    rows = workspace.json("outputs", run, "--copies")["outputs"]
    assert [row["name"] for row in rows] == ["0001-0-final", "0002-0-final", "0003-0-final"]
    assert "matches 3" in workspace.m5ws("resume", run, "--at", "0", expect=2).stderr
    assert "--copies" in workspace.m5ws("resume", run, "--at", "1999", expect=3).stderr
    assert "\nrestores" in (shown := workspace.m5ws("resume", run, "--at", "0001", "--dry-run").stdout)
    assert "0001-0-final" in shown
    assert "\nrestores" not in workspace.m5ws("resume", run, "--from-scratch", "--dry-run").stdout
    workspace.m5ws("resume", run, "--at", "0001-0-f")
    workspace.m5ws("outputs", run, str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out" / "out").iterdir()} == {f"step-{step}" for step in range(1, 5)}
