"""A failed run begins its next attempt by itself, as often as `[run] restart` allows. A NaN loss stops a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.attempts import planning
from m5ws.attempts.planning import RunOptions
from m5ws.records.ledger import Notice
from m5ws.repository.references import checkpoints, runs
from m5ws.runs import state
from m5ws.workspace import find
from tests.support.machine.slurm import Slurm
from tests.support.records.histories import assert_alike, assert_equal
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

_CRASHES = """
    done = step.number if "done" not in globals() else done
    with open(settings["crashes_file"], "ab") as file:
        if (rank, step.number) == (settings["crash_rank"], done + 4) and file.tell() < settings["crashes"]:
            file.write(b"x")
            file.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
    if step.number == settings["nan_at"]:
        loss = loss * float("nan")
"""
"""Each attempt crashes in its fifth step, in all a number of times."""
_SETTINGS = """
restart = { max = 3, same_cause = 1 }
loss = { stop = ["nan"] }
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return _make(tmp_path_factory.mktemp("restarts"))


def _make(root: Path) -> Workspace:
    """Return a workspace whose script does 12 steps, publishes a checkpoint every 3 steps, and crashes if asked."""
    made = make_workspace(root / "w", "fsdp.py", nproc=1, run=_SETTINGS)
    made.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 3")
    made.edit("m5ws.toml", "[mlflow]", "[checkpoint]\nasynchronous = false\n\n[mlflow]")
    values = f"crashes: 0\ncrash_rank: 0\ncrashes_file: {root}/crashes\nnan_at: 0"
    made.edit("config.yaml", "steps: 10", f"steps: 12\n{values}")
    made.edit("train.py", "import time\n", "import os\nimport signal\nimport time\n")
    made.edit("train.py", "    norm = torch", f"{_CRASHES}    norm = torch")
    return made


@pytest.fixture(scope="module")
def undisturbed(workspace: Workspace) -> str:
    return workspace.train()


def _restarts(workspace: Workspace, run: str) -> list[list[Notice]]:
    """Return the notices about restarts of each attempt."""
    attempts = state.load(workspace.repo, run).attempts
    return [[notice for notice in attempt.notices if notice.kind == "restart"] for attempt in attempts]


def test_a_crash_in_each_attempt_ends_a_run_after_three_attempts(workspace: Workspace, undisturbed: str) -> None:
    done = workspace.m5ws("run", "--json", "--set", "crashes=100", expect=1)
    result = json.loads(done.stdout)
    run = result["run"]["id"]
    assert "not restarted: 3 attempts in a row had the cause segmentation-fault" in done.stderr
    assert (result["restarts"], result["result"]["attempt"]) == (2, 3)
    assert done.stderr.count("restart: attempt 1 failed: ") == 1
    # Each attempt published a checkpoint, so `max` would allow restarts for ever.
    assert [checkpoints.step_of(name) for name in checkpoints.valid(workspace.repo, run)] == [3, 6, 9]
    texts = [[notice.message for notice in each] for each in _restarts(workspace, run)]
    failed = "failed: rank 0 was killed by SIGSEGV; restart 1 of 3 from step"
    assert texts == [[], [f"attempt 1 {failed} 3"], [f"attempt 2 {failed} 6"]]
    assert f"restart: attempt 1 {failed} 3" in workspace.m5ws("show", run).stdout
    assert_alike(workspace.history(undisturbed), workspace.history(run))
    assert len(workspace.history(run).steps[0]) >= 9


def test_a_restarted_run_finishes_with_the_bits_of_an_undisturbed_run(workspace: Workspace, undisturbed: str) -> None:
    Path(workspace.root.parent, "crashes").unlink(missing_ok=True)
    shown = workspace.m5ws("run", "--json", "--set", "crashes=1")
    result = json.loads(shown.stdout)
    assert (result["restarts"], result["result"]["outcome"]) == (1, "finished")
    history = workspace.history(result["run"]["id"])
    assert_equal(workspace.history(undisturbed), history)
    assert history.begun == [(0, 1), (3, 2)]
    assert not [notice for notice in history.notices if notice.kind == "inexact-resume"]


def test_a_job_starts_its_agents_again_as_often_as_the_rule_restarts(workspace: Workspace, tmp_path: Path) -> None:
    workspace.edit("config.yaml", "crashes: 0", "crashes: 100")
    found, snapshot = find(workspace.root), workspace.json("snapshot")["id"]
    workspace.edit("config.yaml", "crashes: 100", "crashes: 0")
    repo = workspace.repo
    run = planning.new_run(snapshot, planning.spec(found.settings.run, RunOptions()))
    runs.publish(repo, found.ports(repo).sign(run))
    place = {"SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "M5WS_MASTER": "127.0.0.1:29500"}
    starts = [{**place, "SLURM_RESTART_COUNT": str(number)} for number in range(3)]
    words = ("agent", run.id, "--scratch", str(tmp_path))
    ends = [workspace.m5ws(*words, environment=start, expect=None) for start in starts]
    assert [end.returncode for end in ends] == [75, 75, 1], [end.stderr for end in ends]
    assert "not restarted: 3 attempts in a row had the cause segmentation-fault" in ends[-1].stderr
    texts = [[notice.message for notice in each] for each in _restarts(workspace, run.id)]
    failed = "failed: rank 0 was killed by SIGSEGV; job slurm:7 started again from step"
    assert texts == [[], [f"attempt 1 {failed} 3"], [f"attempt 2 {failed} 6"]]


def test_an_error_of_the_script_is_not_restarted(workspace: Workspace) -> None:
    done = workspace.m5ws("run", "--json", "--set", "hidden=-1", expect=1)
    assert "not restarted: a restart does not help: the cause is script-error" in done.stderr
    assert json.loads(done.stdout)["restarts"] == 0


@pytest.mark.soak
def test_slurm_starts_a_failed_job_again(
    tmp_path: Path, slurm: Slurm, on_slurm: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_slurm(_make(tmp_path))
    submitted = workspace.json("run", "--on", "big", "--nodes", "2", "--set", "crash_rank=1", "--set", "crashes=1")
    run, job = submitted["run"]["id"], submitted["id"]
    wait_for(lambda: "PENDING|BeginTime" in slurm.call("squeue", "-h", "-j", job, "-o", "%T|%r"))
    # In the same second, Slurm still revokes the credential of the first start.
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+5seconds")
    assert workspace.json("wait", run)["standing"] == "finished"
    assert workspace.history(run).begun == [(0, 1), (3, 2)]
    [[], [restart]] = _restarts(workspace, run)
    assert restart.message.endswith(f"job slurm:{job} started again from step 3")


@pytest.mark.soak
def test_a_job_on_two_hosts_is_restarted_by_the_logs_of_both(
    tmp_path: Path, on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(_make(tmp_path))
    workspace.edit("m5ws.toml", "restarts = 2", "restarts = 8")
    alone = workspace.train("--nproc", "2")
    words = ("--on", "lab", "--nodes", "2", "--set", "crash_rank=1")
    healed = workspace.json("run", *words, "--set", "crashes=1")["run"]["id"]
    assert workspace.json("wait", healed)["standing"] == "finished"
    assert_equal(workspace.history(alone), workspace.history(healed))
    assert workspace.history(healed).begun == [(0, 1), (3, 2)]
    crashing = workspace.json("run", *words, "--set", "crashes=100")["run"]["id"]
    assert workspace.json("wait", crashing, expect=1)["standing"] == "failed"
    [[], [second], [third]] = _restarts(workspace, crashing)
    assert second.message.startswith("attempt 1 failed: rank 1 was killed by SIGSEGV; ")
    assert third.message.endswith("started again from step 6")
    assert workspace.json("cause", crashing)["cause"]["kind"] == "segmentation-fault"


def test_a_loss_that_is_nan_stops_a_run_that_asks_for_it(workspace: Workspace) -> None:
    done = workspace.m5ws("run", "--json", "--set", "nan_at=4", "--set", "pause_s=1.0", expect=1)
    result = json.loads(done.stdout)
    assert (result["result"]["reason"]["kind"], result["restarts"]) == ("loss", 0)
    newest = state.load_newest(workspace.repo, result["run"]["id"])
    assert newest.last_step < 12
    notices = [notice for notice in workspace.history(result["run"]["id"]).notices if notice.kind == "loss"]
    assert [(notice.step, notice.message) for notice in notices] == [(4, "the loss is nan at step 4")]


_FAULT = """
    if (rank, step.number) == (1, 8) and not os.path.exists(settings["fault_file"]):
        open(settings["fault_file"], "x").close()
        model.up.weight.to_local().data.view(-1)[0] += 1.0
"""
"""A device changes its copy of one element, once."""


def test_a_run_continues_from_the_checkpoint_before_a_fault_in_one_copy_of_a_shard(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    made = make_workspace(tmp_path / "w", "fsdp.py", nproc=2, run=_SETTINGS)
    made.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 3")
    made.edit("config.yaml", "steps: 10", f"steps: 12\nfault_file: {fault}")
    made.edit("train.py", "import time\n", "import os\nimport time\n")
    mesh = 'mesh=dist.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards"))'
    made.edit(
        "train.py",
        "fully_shard(model.up)\nfully_shard(model)",
        f"fully_shard(model.up, {mesh})\nfully_shard(model, {mesh})",
    )
    made.edit("train.py", "    step.record(", f"{_FAULT}    step.record(")
    fault.touch()
    undisturbed = made.history(made.train())
    fault.unlink()
    shown = made.m5ws("run", "--json")
    result = json.loads(shown.stdout)
    assert "cause: copies-differ: " in shown.stderr and "restart 1 of 3 from step 6" in shown.stderr
    assert (result["restarts"], result["result"]["outcome"]) == (1, "finished")
    history = made.history(result["run"]["id"])
    assert history.begun == [(0, 1), (6, 2)]
    assert_equal(undisturbed, history)
