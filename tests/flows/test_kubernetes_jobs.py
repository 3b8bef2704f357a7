"""Jobs of Kubernetes on a server of the tests, with a network namespace for each pod. None ran on a cluster."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, jobs
from m5ws.runs import state
from tests.support.kubernetes.api_server import Server
from tests.support.kubernetes.controller import Controller
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

pytestmark = pytest.mark.services
_ENDS, _LONGEST_S = 25, 20.0


def test_two_pods_of_two_ranks_have_the_bits_of_one_machine_and_are_reproduced_there(
    tmp_path: Path, on_kubernetes: Callable[[Workspace], Workspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = on_kubernetes(make_workspace(tmp_path / "w", "fsdp.py", nproc=2))
    run = workspace.json("run", "--on", "k8s", "--nodes", "2")["run"]["id"]
    assert workspace.json("wait", run)["standing"] == "finished"
    alone = workspace.json("run", "--nproc", "4")["run"]["id"]
    expected = workspace.states(alone)
    assert expected[1].keys() == {0, 1, 2, 3} and workspace.states(run) == expected
    assert [start.node for start in ledger.node_starts(workspace.repo, run, 1)] == [0, 1]
    (found,) = jobs.of_run(workspace.repo, run)
    image = "M5WS_CONTAINER_IMAGE"
    monkeypatch.setenv(image, next(line.split('"')[1] for line in found.script.splitlines() if "@sha256" in line))
    assert workspace.json("reproduce", run)["outcome"] == "reproduced"
    assert fsck.check(workspace.repo, read_data=True).damage == ()


def test_a_killed_and_an_evicted_pod_continue_from_a_checkpoint(
    tmp_path: Path, api_server: Server, pods: Controller, on_kubernetes: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_kubernetes(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.5")
    workspace.edit("config.yaml", "steps: 10", "steps: 18")
    submitted = workspace.json("run", "--on", "k8s", "--nodes", "2")
    run, name = submitted["run"]["id"], submitted["job"]["name"]
    assert submitted["id"] == name
    wait_for(lambda: _last_step(workspace, run) >= 5)
    pods.kill(name, 1)
    wait_for(lambda: _last_step(workspace, run, attempt=2) >= 8)
    pods.evict(name, 1)
    assert workspace.json("wait", run)["standing"] == "finished"
    first, second, third = state.load(workspace.repo, run).attempts
    # Kubernetes ends the other pods of a failed Job at once: the leader may read this first.
    assert first.reason is not None and first.reason.kind in ("node lost", "stopped")
    assert second.reason is not None and second.reason.kind == "stopped"
    assert second.resume is not None and checkpoints.step_of(second.resume) >= 4
    # The last checkpoint of the evicted pods.
    assert third.resume is not None and checkpoints.step_of(third.resume) == second.last_step
    wait_for(lambda: "terminalState" in api_server.jobsets[name]["status"])
    assert api_server.jobsets[name]["status"] == {
        "restarts": 2, "terminalState": "Completed",
        "conditions": api_server.jobsets[name]["status"]["conditions"],
    }  # fmt: skip
    assert fsck.check(workspace.repo).damage == ()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_pods_that_end_at_any_moment_start_again(
    tmp_path: Path, api_server: Server, pods: Controller, on_kubernetes: Callable[[Workspace], Workspace], seed: int
) -> None:
    draw = random.Random(seed)
    workspace = on_kubernetes(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("m5ws.toml", "restarts = 2", "restarts = 100")
    workspace.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 1")
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.3")
    workspace.edit("config.yaml", "steps: 10", "steps: 40")
    submitted = workspace.json("run", "--on", "k8s", "--nodes", "2")
    run, name = submitted["run"]["id"], submitted["job"]["name"]
    ends = 0
    while ends < _ENDS and "terminalState" not in api_server.jobsets[name].get("status", {}):
        time.sleep(draw.uniform(0, _LONGEST_S))
        if (name, 0) in pods.processes:
            end = draw.choice((pods.kill, pods.evict))
            end(name, draw.randrange(2))
            ends += 1
    assert workspace.json("wait", run)["standing"] == "finished", "\n".join(map(str, pods.ends))
    alone = workspace.json("run", "--nproc", "2")["run"]["id"]
    assert workspace.states(run) == workspace.states(alone)
    assert fsck.check(workspace.repo).damage == ()


def test_a_failed_script_fails_the_job_once(
    tmp_path: Path, api_server: Server, on_kubernetes: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_kubernetes(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    workspace.edit("train.py", "step.next_batch()", "step.next_batch() if rank == 0 else 1 / 0")
    submitted = workspace.json("run", "--on", "k8s", "--nodes", "2")
    assert workspace.json("wait", submitted["run"]["id"], expect=1)["standing"] == "failed"
    wait_for(lambda: "terminalState" in api_server.jobsets[submitted["id"]]["status"])
    status = api_server.jobsets[submitted["id"]]["status"]
    assert (status["terminalState"], status["restarts"]) == ("Failed", 0)


def test_a_job_that_waits_is_shown_with_its_reason_and_removed_by_a_cancel(
    tmp_path: Path, api_server: Server, pods: Controller, on_kubernetes: Callable[[Workspace], Workspace]
) -> None:
    workspace = on_kubernetes(make_workspace(tmp_path / "w", "fsdp.py", nproc=1))
    dry = workspace.m5ws("run", "--on", "k8s", "--dry-run").stdout
    assert "kind: JobSet" in dry and not list(workspace.repo.store.list(jobs.PREFIX))
    assert "kubernetes accepts jobs of 1 node" in workspace.m5ws("doctor", expect=None).stdout
    pods.hold = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    try:
        submitted = workspace.json("run", "--on", "k8s")
        run = submitted["run"]["id"]
        wait_for(lambda: "Insufficient nvidia.com/gpu" in workspace.m5ws("show", run).stdout)
        assert "queued since" in workspace.m5ws("show", run).stdout
        assert workspace.json("cancel", run)["unqueued"] == [submitted["job"]["name"]]
        assert submitted["id"] not in api_server.jobsets
    finally:
        pods.hold = None
    assert workspace.json("wait", run, expect=130)["standing"] == "created"
    assert not ledger.attempts(workspace.repo, run)


def _last_step(workspace: Workspace, run: str, attempt: int = 1) -> int:
    newest = state.load_newest(workspace.repo, run).newest
    return newest.last_step if newest is not None and newest.attempt == attempt else 0
