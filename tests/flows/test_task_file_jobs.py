"""A job whose task file its user submits: m5ws writes the file, and the store has the job."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from m5ws.repository.references import jobs
from m5ws.runs import state
from tests.support.workspace.command_line import inherited
from tests.support.workspace.workspaces import Workspace, make_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    with (made.root / "m5ws.toml").open("a") as settings:
        settings.write(f"""
[clusters.sky]
engine = "skypilot"
python = "{sys.executable}"
scratch = "{tmp_path}/scratch"
shared = ["{tmp_path}"]
task = {{ resources = {{ accelerators = "H100:1" }} }}
""")
    return made


def test_a_run_writes_a_task_file_that_no_snapshot_captures(workspace: Workspace) -> None:
    dry = workspace.m5ws("run", "--on", "sky", "--dry-run").stdout
    assert yaml.safe_load(dry)["resources"] == {"accelerators": "H100:1"}
    assert not (workspace.root / ".m5ws" / "jobs").exists()
    before = workspace.json("snapshot")["id"]
    submitted = workspace.m5ws("run", "--on", "sky", "--nodes", "2")
    (file,) = (workspace.root / ".m5ws" / "jobs").iterdir()
    assert f"`sky jobs launch {file}` submits it to sky" in submitted.stderr
    run = submitted.stdout.strip()
    (job,) = jobs.of_run(workspace.repo, run)
    assert job.script == file.read_text() and yaml.safe_load(job.script)["num_nodes"] == 2
    assert workspace.json("snapshot")["id"] == before
    assert "does not ask skypilot about jobs" in workspace.m5ws("show", run).stdout
    assert "does not ask it" in workspace.m5ws("doctor", expect=None).stdout
    assert workspace.json("cancel", run)["unqueued"] == []


@pytest.mark.services
def test_the_shell_of_a_task_file_trains_the_run(workspace: Workspace) -> None:
    run = workspace.m5ws("run", "--on", "sky").stdout.strip()
    (job,) = jobs.of_run(workspace.repo, run)
    place = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_TASK_ID": "sky-1"}
    place["SKYPILOT_NODE_IPS"] = "127.0.0.1"
    done = subprocess.run(["bash", "-c", yaml.safe_load(job.script)["run"]], env=inherited() | place, check=False)
    assert done.returncode == 0
    assert state.load_newest(workspace.repo, run).standing == "finished"


def test_a_sweep_writes_a_task_file_for_each_run(workspace: Workspace) -> None:
    made = workspace.m5ws("sweep", "learning_rate=0.1,0.2", "--on", "sky")
    files = [*(workspace.root / ".m5ws" / "jobs").iterdir()]
    assert len(files) == 2 and all(f"`sky jobs launch {file}` submits it to sky" in made.stderr for file in files)
    assert "2 jobs were written" in made.stderr
