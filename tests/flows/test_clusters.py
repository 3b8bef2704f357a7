"""Jobs of a real Slurm and of hosts by ssh: the bits of one machine, from a submitter that goes away."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from m5ws.records.failure import EndReason
from m5ws.records.ledger import CheckpointPublished
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import canaries, checkpoints, jobs, runs
from m5ws.repository.repository import Repository
from m5ws.runs import state
from m5ws.store import open_store
from tests.support.campaigns import soak_page
from tests.support.machine import run_processes
from tests.support.machine.slurm import Slurm
from tests.support.paths import ROOT
from tests.support.s3.s3_servers import S3Server
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services
_SEGMENTS = (
    "| training | steps | segments | jobs | steps done again | the run | until the last job has joined the verdicts |",
    "|---|---|---|---|---|---|---|",
)
_OBSERVED = ROOT / "tests" / "training" / "scripts" / "observed.py"


def _slow(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.5")
    workspace.edit("config.yaml", "steps: 10", "steps: 60")
    return workspace


def _begun(workspace: Workspace, run: str, attempt: int, step: int) -> Callable[[], bool]:
    """Return a condition: an attempt has done a step."""

    def reached() -> bool:
        newest = state.load_newest(workspace.repo, run).newest
        return newest is not None and newest.attempt == attempt and newest.last_step >= step

    return reached


def _announced(workspace: Workspace, run: str) -> list[str]:
    """Return the names of the checkpoints that the ranks of all attempts have announced."""
    repo = workspace.repo
    events = (event for attempt in ledger.attempts(repo, run) for _, event in ledger.read_events(repo, run, attempt))
    return sorted(event.name for event in events if isinstance(event, CheckpointPublished))


def _ends(workspace: Workspace, run: str) -> list[EndReason | None]:
    return [attempt.reason for attempt in state.load(workspace.repo, run).attempts]


def test_jobs_on_slurm_and_on_hosts_train_the_bits_of_one_machine(
    tmp_path: Path, on_slurm: Callable[[Workspace], Workspace], on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1)))
    workspace.edit("m5ws.toml", "warn_s = 60", 'warn_s = 60\nprefetch = "high"')
    workspace.edit("m5ws.toml", "[config]", f'[store]\ncache = "{tmp_path}/cache"\n\n[config]')
    submitted = {name: workspace.json("run", "--on", name, "--nodes", "2")["run"]["id"] for name in ("big", "lab")}
    for run in submitted.values():
        assert workspace.json("wait", run) == {"run": run, "standing": "finished", "status": 0}
        assert len(list(ledger.node_starts(workspace.repo, run, 1))) == 2
    alone = workspace.train("--nproc", "2")
    assert workspace.states(submitted["big"]) == workspace.states(submitted["lab"]) == workspace.states(alone)
    # A job of another partition has filled the cache before.
    first, then = jobs.of_run(workspace.repo, submitted["big"])
    assert first.command == ("prefetch", submitted["big"]) and then.command == ()
    fetched = next(tmp_path.glob(f"{first.name}-*.out")).read_text()
    assert "were fetched" in fetched and any((tmp_path / "cache").iterdir())
    # The nodes have the logs, and the store too.
    assert {"0", "1"} <= workspace.json("logs", submitted["lab"])["logs"].keys()
    assert "[1] " in workspace.m5ws("logs", submitted["big"]).stdout
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.soak
def test_jobs_share_the_segments_of_a_reproduction(tmp_path: Path, on_slurm: Callable[[Workspace], Workspace]) -> None:
    """The whole command of a reproduction is a job, too, or several jobs that share the segments."""
    workspace = on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    run = workspace.train("--nproc", "2")
    words = ("reproduce", "--json", run, "--all-segments")
    shared = workspace.json(words[0], *words[2:], "--parallel", "2", "--on", "big", "--nodes", "2")
    assert [each["job"]["command"][:4] for each in shared] == [["reproduce", "--share", n, "2"] for n in ("1", "2")]
    wait_for(lambda: _is_joined(workspace, run))
    for row in workspace.json("show", run)["replays"]:
        assert [start.node for start in ledger.node_starts(workspace.repo, row["id"], 1)] == [0, 1]
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.soak
def test_a_job_on_two_nodes_trains_from_a_bucket_and_is_reproduced_on_one_machine(
    tmp_path: Path, s3_environment: None, s3_server: S3Server, on_slurm: Callable[[Workspace], Workspace]
) -> None:
    url = s3_server.url(s3_server.bucket(), region="eu-west-1")
    workspace = on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("m5ws.toml", "[config]", f'[store]\nurl = "{url}"\n\n[config]')
    run = workspace.json("run", "--on", "big", "--nodes", "2")["run"]["id"]
    assert workspace.json("wait", run)["standing"] == "finished"
    repo = Repository.open(open_store(url))
    assert [start.node for start in ledger.node_starts(repo, run, 1)] == [0, 1]
    assert workspace.json("reproduce", run)["outcome"] == "reproduced"
    assert fsck.check(repo, read_data=True).damage == ()


@pytest.mark.soak
def test_replays_on_two_nodes_find_and_repeat_the_divergence_of_a_rank_of_the_second_node(
    tmp_path: Path, on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    words = ("--on", "lab", "--nodes", "2")
    verdicts = []
    for seed in ("seed * 100 + rank", "seed * 100 + (time.time_ns() % 2**32 if rank == 1 else 0)"):
        workspace.edit("train.py", "torch.manual_seed(seed * 100 + rank)", f"torch.manual_seed({seed})")
        run = workspace.json("run", *words)["run"]["id"]
        assert workspace.json("wait", run)["standing"] == "finished"
        workspace.m5ws("reproduce", run, *words)
        wait_for(partial(runs.verdicts, workspace.repo, run))
        verdicts += runs.verdicts(workspace.repo, run)
    same, other = verdicts
    assert same.outcome == "reproduced" and same.compared["steps"] == 20
    assert other.outcome == "nondeterministic" and other.first is not None and other.first.rank == 1
    assert other.recheck is not None and other.recheck.replay is not None
    for replay in (same.replay, other.replay, other.recheck.replay):
        assert [start.node for start in ledger.node_starts(workspace.repo, replay, 1)] == [0, 1]
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.soak
def test_a_thousand_steps_are_verified_by_jobs_that_share_the_segments(
    tmp_path: Path, on_slurm: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    for old, new in (("steps: 10", "steps: 1000"), ("hidden: 128", "hidden: 384"), ("batch: 8", "batch: 32")):
        workspace.edit("config.yaml", old, new)
    workspace.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 100")
    for parallel in (1, 2):
        # Another seed is another run, of the same work.
        times = [time.monotonic()]
        run = workspace.train("--seed", str(parallel))
        times.append(time.monotonic())
        workspace.json("reproduce", run, "--all-segments", "--parallel", str(parallel), "--on", "big")
        wait_for(partial(_is_joined, workspace, run))
        times.append(time.monotonic())
        replays = workspace.json("show", run)["replays"]
        steps = sum(len(workspace.history(row["id"]).steps[0]) for row in replays)
        assert (len(replays), steps) == (10, 1000)
        seconds = [f"{after - before:,.0f} s" for before, after in pairwise(times)]
        row = "| " + " | ".join(map(str, ("fsdp", 1000, 10, parallel, steps, *seconds))) + " |"
        print(row)
        soak_page.put("jobs", _SEGMENTS, row, cells=4)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["fsdp", "zero", "observed"])
def test_two_nodes_of_two_ranks_on_slurm_and_on_hosts_are_reproduced_on_one_machine(
    tmp_path: Path, on_slurm: Callable[[Workspace], Workspace], on_hosts: Callable[[Workspace], Workspace], kind: str
) -> None:
    script = "plain.py" if kind == "observed" else f"{kind}.py"
    workspace = on_hosts(on_slurm(make_workspace(tmp_path / "w", script, nproc=2)))
    if kind == "observed":
        (workspace.root / "train.py").write_bytes(_OBSERVED.read_bytes())
        workspace.edit("m5ws.toml", 'command = ["train.py"]', 'command = ["train.py", "distributed", "8"]')
    submitted = [workspace.json("run", "--on", name, "--nodes", "2")["run"]["id"] for name in ("big", "lab")]
    for run in submitted:
        assert workspace.json("wait", run)["standing"] == "finished"
    alone = workspace.json("run", "--nproc", "4")["run"]["id"]
    expected = workspace.states(alone)
    assert expected[1].keys() == {0, 1, 2, 3}
    for run in submitted:
        assert workspace.states(run) == expected
        assert workspace.json("reproduce", run)["outcome"] == ("sampled" if kind == "observed" else "reproduced")
    assert fsck.check(workspace.repo, read_data=True).damage == ()


def _is_joined(workspace: Workspace, run: str) -> bool:
    """Return True when the last of the jobs has joined the verdicts on all segments."""
    shown = workspace.json("show", run)
    assert all(row["outcome"] in (None, "sampled") for row in shown["replays"])
    return shown["joint"] is not None and shown["joint"]["outcome"] == "reproduced"


def test_a_job_that_is_warned_of_its_time_limit_starts_again_and_a_cancel_ends_it(
    tmp_path: Path, slurm: Slurm, on_slurm: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_slurm(_slow(tmp_path))
    submitted = workspace.json("run", "--on", "big", "--nodes", "2")
    run, job = submitted["run"]["id"], submitted["id"]
    wait_for(_begun(workspace, run, 1, 3))
    slurm.call("scancel", "--signal=USR2", job)
    wait_for(lambda: "PENDING|BeginTime" in slurm.call("squeue", "-h", "-j", job, "-o", "%T|%r"))
    shown = workspace.m5ws("show", run).stdout
    assert "queued since" in shown and "because BeginTime" in shown
    # In the same second, Slurm still revokes the credential of the first start.
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+5seconds")
    wait_for(_begun(workspace, run, 2, 5))
    workspace.m5ws("cancel", run)
    assert workspace.json("wait", run, expect=130)["standing"] == "interrupted"
    first, second = state.load(workspace.repo, run).attempts
    assert first.reason == EndReason(kind="stopped", signal="SIGUSR2")
    assert second.reason is not None and second.reason.kind == "cancelled"
    # No step was lost: each attempt ended with a checkpoint, and the second attempt began there.
    saved = [checkpoints.step_of(name) for name in checkpoints.valid(workspace.repo, run)]
    assert second.resume is not None and checkpoints.step_of(second.resume) == first.last_step
    assert {first.last_step, second.last_step} <= {*saved}
    wait_for(lambda: not slurm.call("squeue", "-h", "-j", job, "-t", "PENDING,RUNNING,COMPLETING"))
    assert len(ledger.attempts(workspace.repo, run)) == 2 and fsck.check(workspace.repo).damage == ()


def test_a_cancelled_job_leaves_its_queue_and_begins_no_attempt(
    tmp_path: Path, slurm: Slurm, on_slurm: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    slurm.call("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        submitted = workspace.json("run", "--on", "big")
        run, job = submitted["run"]["id"], submitted["id"]
        assert "queued since" in workspace.m5ws("show", run).stdout
        assert workspace.json("cancel", run)["unqueued"] == [submitted["job"]["name"]]
        assert "CANCELLED" in slurm.call("squeue", "-h", "-j", job, "-t", "all", "-o", "%T")
        assert workspace.json("wait", run, expect=130)["standing"] == "created"
    finally:
        slurm.call("scontrol", "update", "PartitionName=main", "State=UP")
    # An agent of the job that comes late does nothing.
    script = jobs.of_run(workspace.repo, run)[0].script.replace("srun ", "true ")
    agent = next(line for line in script.splitlines() if " agent " in line).split(" agent ")[1]
    words = ["python", "-m", "m5ws", "agent", *agent.replace("'", "").split()]
    place = {"M5WS_NODE": "0", "M5WS_NODES": "1", "M5WS_MASTER": "127.0.0.1:29000", "M5WS_JOB": "7"}
    place["SLURMD_NODENAME"] = "n1"
    late = subprocess.run(words, env=os.environ | place, capture_output=True, text=True)
    assert late.returncode == 130 and "was cancelled" in late.stderr
    assert not ledger.attempts(workspace.repo, run)


def test_hosts_start_again_after_an_agent_was_killed_and_outlive_their_submitter(
    tmp_path: Path, on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(_slow(tmp_path))
    submitted = workspace.json("run", "--on", "lab", "--nodes", "2")
    run = submitted["run"]["id"]
    wait_for(_begun(workspace, run, 1, 3))
    (agent,) = run_processes.find(run)["agent", 0]
    os.kill(agent, signal.SIGKILL)
    # The ranks save a last checkpoint. They are slow: the next agent of node 0 is there before.
    ranks = run_processes.find(run)["rank", 0]
    for rank in ranks:
        os.kill(rank, signal.SIGSTOP)
    wait_for(lambda: run_processes.find(run).get(("agent", 0), [agent]) != [agent])
    time.sleep(3.0)
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)
    wait_for(_begun(workspace, run, 2, 5))
    shown = workspace.m5ws("show", run).stdout
    assert "box0: running, box1: running" in shown
    workspace.m5ws("cancel", run)
    assert workspace.json("wait", run, expect=130)["standing"] == "interrupted"
    kinds = [reason.kind for reason in _ends(workspace, run) if reason is not None]
    assert kinds == ["supervisor killed", "cancelled"]
    assert _announced(workspace, run) == checkpoints.valid(workspace.repo, run)
    assert fsck.check(workspace.repo).damage == ()


def test_preflight_checks_nodes_of_slurm_and_hosts_and_names_a_host_that_does_not_answer(
    tmp_path: Path, on_slurm: Callable[[Workspace], Workspace], on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(on_slurm(make_workspace(tmp_path / "w", "fsdp.py", nproc=1)))
    workspace.edit("m5ws.toml", 'hosts = ["box0", "box1"]', 'hosts = ["box0", "box9"]')
    workspace.m5ws("snapshot")
    checked = workspace.json("preflight", "--on", "lab", expect=1)
    well, silent = checked["nodes"]
    assert well["node"].startswith("box0 (") and not {"failed", "broken"} & {check["state"] for check in well["checks"]}
    assert silent["node"] == "box9" and [check["state"] for check in silent["checks"]] == ["failed"]
    (node,) = workspace.json("preflight", "--on", "big", "--nodes", "1")["nodes"]
    assert [check["name"] for check in node["checks"]] == [check["name"] for check in well["checks"]]


@pytest.mark.soak
def test_a_canary_in_a_job_has_its_result_in_the_store(
    tmp_path: Path, on_hosts: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_hosts(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.m5ws("snapshot")
    for position in range(2):
        workspace.m5ws("canary", "--on", "lab", "--steps", "2")
        wait_for(partial(_has_canaries, workspace, position + 1))
    results = json.loads(workspace.m5ws("canary", "history", "--json").stdout)["results"]
    assert [result["outcome"] for result in results] == ["ok", "ok"]


def _has_canaries(workspace: Workspace, number: int) -> bool:
    return len(list(workspace.repo.store.list(canaries.PREFIX))) == number
