"""`[run] inputs = "pinned"`: a run uses nothing that is not pinned, and names each refusal with its remedy."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m5ws.repository.references import checkpoints
from m5ws.runs import state
from tests.launch.test_landlock import without_landlock
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

_PINNED = 'inputs = "pinned"'


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path, shared: Path) -> Workspace:
    """A workspace whose script reads the folder `shared`."""
    run = f'{_PINNED}\nenvironment = {{ SHARED = "{shared}" }}'
    made = make_workspace(tmp_path / "w", "curious.py", trainer="python", nproc=1, run=run)
    for name in ("by-open", "by-a-worker", "tokenizer.json"):
        (shared / name).write_text((made.root / "tokenizer" / "tokenizer.json").read_text())
    return made


def _results(output: str) -> Any:
    [line] = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(line)


def _with_descriptor(shared: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with an inherited descriptor of a shared file."""
    with open(shared / "by-open", "rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        variables = os.environ | {"SHARED": str(shared)}
        return subprocess.run(argv, env=variables, capture_output=True, text=True, close_fds=False)


def test_the_script_has_no_refusal_without_m5ws(workspace: Workspace, shared: Path) -> None:
    """Otherwise the refusals of the other tests would prove nothing."""
    done = _with_descriptor(shared, sys.executable, str(workspace.root / "train.py"))
    assert done.returncode == 0, done.stderr
    results = _results(done.stdout)
    assert len(results["glob"]) == 4 and str(shared / "by-open") in results["descriptors"]
    assert "PermissionError" not in results.values()


def test_refusals_are_listed_once_with_the_remedy(workspace: Workspace, shared: Path) -> None:
    argv = (sys.executable, "-m", "m5ws", "-C", str(workspace.root), "run", "--no-progress")
    done = _with_descriptor(shared, *argv)
    assert done.returncode == 1, done.stderr
    listed = dict(re.findall(r"refused \(step 0\): (not [^:]+): (.*?)\. ", done.stderr))
    assert listed["not pinned"].split(", ") == [f"{shared}/by-a-worker", f"{shared}/by-open", str(shared)]
    assert listed["not in the work directory"] == f"{shared}/written"
    assert listed["not hosts of the run"] == "huggingface.co, 192.0.2.99"
    assert f"Run `ln -s {shared}/by-a-worker by-a-worker` in the workspace" in done.stderr
    assert done.stderr.count("[data] paths") == 1 and done.stderr.count('inputs = "recorded"') == 3
    results = _results(workspace.m5ws("logs", workspace.json("ls")["runs"][0]["id"]).stdout)
    assert results["glob"] == [] and results["hub"] == "LocalEntryNotFoundError"
    assert (results["name"], results["address"]) == ("HostRefused", "HostRefused")
    assert not [path for path in results["descriptors"] if path.startswith(str(shared))]
    assert not Path(results["temporary"]).exists()
    assert sorted(path.name for path in shared.iterdir()) == ["by-a-worker", "by-open", "tokenizer.json"]


def test_a_kernel_without_landlock_is_an_error(workspace: Workspace) -> None:
    argv = without_landlock(sys.executable, "-m", "m5ws", "-C", str(workspace.root))
    done = subprocess.run([*argv, "run", "--no-progress"], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'inputs = "pinned" needs ABI 2 of the kernel\'s Landlock, and the kernel has ABI 0' in done.stderr
    assert "Use Linux 5.19 or newer" in done.stderr and 'inputs = "recorded"' in done.stderr
    assert workspace.json("ls")["runs"] == [] and not list(workspace.root.glob(".m5ws/runs/*/0001/temporary"))
    checked = subprocess.run([*argv, "doctor"], capture_output=True, text=True)
    assert re.search(r"landlock +not needed +ABI 0", checked.stdout), checked.stdout


@pytest.mark.soak
@pytest.mark.parametrize("script", ["fsdp.py", "zero.py"])
def test_a_pinned_run_stops_resumes_and_is_reproduced(tmp_path: Path, script: str) -> None:
    trainer = "deepspeed" if script == "zero.py" else "torchrun"
    workspace = make_workspace(tmp_path / "w", script, trainer=trainer, run='inputs = "pinned"')
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.2")
    with workspace.start("run", "--no-progress") as process:
        wait_for(lambda: list(workspace.root.glob(".m5ws/store/runs/*/checkpoints/*")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    [run] = [row["id"] for row in workspace.json("ls")["runs"]]
    assert process.returncode == 130 and checkpoints.valid(workspace.repo, run), output
    workspace.process("resume", run, "--no-progress")
    assert [attempt.standing for attempt in state.load(workspace.repo, run).attempts] == ["interrupted", "finished"]
    assert "REPRODUCED" in workspace.process("reproduce", run).stdout
    assert _refused(workspace) == []


def _refused(workspace: Workspace) -> list[str]:
    """Return the refusals in the notices and logs of all runs."""
    logs = [path for path in workspace.root.glob(".m5ws/runs/*/*/logs/*") if "ermission denied" in path.read_text()]
    return [str(path) for path in (*workspace.root.glob(".m5ws/runs/*/*/spool/refused"), *logs)]
