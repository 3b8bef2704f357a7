"""Agents on several nodes make one attempt: of the same bits as on one machine, with one end, and never two."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from m5ws.agent import run_lock
from m5ws.agent.link import StartAgain
from m5ws.launch import reaper
from m5ws.records.ledger import CheckpointPublished, NodeStarted, State
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.runs import state
from tests.support.faults import wrong_bits
from tests.support.machine.agents import Agents
from tests.support.workspace.workspaces import Workspace, make_workspace

_LIMIT_S = 240.0
_ORPHANS_S = 60.0
_NODES = 2
_FILES = """
import os, sys, time
from pathlib import Path
rank, node = os.environ["RANK"], os.environ["GROUP_RANK"]
own, begun, counts = Path(f"out/rank-{rank}.txt"), Path(f"out/begun-{rank}.txt"), []
if own.exists():
    counts = own.read_text().split()
    restored = all(Path(f"out/rank-{each}.txt").exists() for each in range(2))
    begun.unlink(missing_ok=True)
else:
    restored = False
    begun.touch()
own.write_text(" ".join([*counts, f"{len(counts) + 1}{'-restored' if restored else ''}"]))
if os.environ["LOCAL_RANK"] == "0":
    Path("out/equal.txt").write_text("equal")
    Path("out/same.txt").write_text(node if "conflict" in sys.argv else "same")
if len(counts) < STOPS:
    Path(f"MARKS/{len(counts)}-{rank}").touch()
    while len(list(Path("MARKS").glob(f"{len(counts)}-*"))) < 2:
        time.sleep(0.05)
    raise SystemExit(9)
"""
"""A script whose ranks write a file each, and fail in their first attempts, when all ranks have written."""


def _training(tmp_path: Path, cluster: Callable[[Workspace], Agents]) -> Agents:
    """Return the agents of a slow training that has published its first checkpoint."""
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=4)
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.3")
    nodes = cluster(workspace)
    nodes.start("first")
    nodes.wait_for(lambda: 4 in nodes.published())
    return nodes


def _states(workspace: Workspace, run: str) -> dict[tuple[str, int], object]:
    """Return the fingerprints of all ranks after each step, of all attempts."""
    repo, found = workspace.repo, dict[tuple[str, int], object]()
    for attempt in ledger.attempts(repo, run):
        for origin, event in ledger.read_events(repo, run, attempt):
            if isinstance(event, State):
                found[origin, event.step] = event.tensors, event.generators
    return found


@pytest.mark.soak
def test_two_nodes_train_the_bits_of_one_machine_which_reproduces_them(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=4)
    nodes = cluster(workspace)
    nodes.start("first")
    assert nodes.end() == [0, 0]
    repo = workspace.repo
    starts = list(ledger.node_starts(repo, nodes.run, 1))
    assert [start.node for start in starts] == [0, 1] and all(isinstance(start, NodeStarted) for start in starts)
    assert {origin for origin, _ in _states(workspace, nodes.run)} == {"0", "1", "2", "3"}
    assert fsck.check(repo, read_data=True).damage == ()
    whole = workspace.train()
    one, two = (
        [
            (event.step, event.content)
            for _, event in ledger.read_events(repo, run, 1)
            if isinstance(event, CheckpointPublished)
        ]
        for run in (whole, nodes.run)
    )
    assert one == two and len(one) == 3
    assert workspace.json("reproduce", nodes.run)["outcome"] == "reproduced"


@pytest.mark.soak  # `make test-services` has signals and kills in jobs of a real Slurm and on hosts: test_clusters.py
@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_to_one_node_ends_all_with_a_checkpoint_and_all_resume(
    tmp_path: Path, cluster: Callable[[Workspace], Agents], node: int
) -> None:
    nodes = _training(tmp_path, cluster)
    workspace = nodes.workspace
    os.kill(nodes.agents[node].pid, signal.SIGUSR2)
    # By this signal, a scheduler announces the end of its time.
    assert nodes.end() == [75, 75]
    [attempt] = state.load(workspace.repo, nodes.run).attempts
    assert attempt.standing == "interrupted"
    last = nodes.published()[-1]
    assert 4 < last < 10
    nodes.start("second")
    assert nodes.end() == [0, 0]
    whole = workspace.train()
    assert _states(workspace, nodes.run) == _states(workspace, whole)
    assert fsck.check(workspace.repo, read_data=True).damage == ()


def _rank_on(cluster: Agents, node: int) -> int:
    """Return the process id of a rank below the agent of a node."""
    below = reaper.descendants(cluster.agents[node].pid)
    return max(pid for pid in below if "m5ws.training.rank" in reaper.command_line(pid).split(" train.py")[0][-40:])


def _left(scratch: Path) -> list[str]:
    """Return the command lines of processes that use the scratch folders of the nodes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(scratch) in os.readlink(process / "fd" / "1"):
                found.append(reaper.command_line(int(process.name)))
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "node", "statuses"),
    [("agent", 0, [-9, 75]), ("agent", 1, [75, -9]), ("rank", 0, [1, 1]), ("rank", 1, [1, 1])],
)
def test_after_a_kill_on_one_node_all_end_and_the_next_attempt_continues(
    tmp_path: Path, cluster: Callable[[Workspace], Agents], victim: str, node: int, statuses: list[int]
) -> None:
    nodes = _training(tmp_path, cluster)
    workspace = nodes.workspace
    os.kill(nodes.agents[node].pid if victim == "agent" else _rank_on(nodes, node), signal.SIGKILL)
    assert nodes.end() == statuses
    end_s = time.monotonic() + _ORPHANS_S
    while left := _left(tmp_path / "scratch"):
        assert time.monotonic() < end_s, left
        time.sleep(0.5)
    nodes.start("second")
    assert nodes.end() == [0, 0]
    repo, whole = workspace.repo, workspace.train()
    expected = _states(workspace, whole)
    # Steps of a killed agent that the ledger has not are lost with its node. None of another value may be there.
    assert _states(workspace, nodes.run).items() <= expected.items()
    assert {step for _, step in _states(workspace, nodes.run)} == {step for _, step in expected}
    assert [attempt.standing for attempt in state.load(repo, nodes.run).attempts] == ["failed", "finished"]
    assert fsck.check(repo, read_data=True).damage == ()


@pytest.mark.soak
def test_a_node_that_falls_silent_ends_the_attempt_and_is_named(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    nodes = _training(tmp_path, cluster)
    workspace = nodes.workspace
    stopped = [nodes.agents[1].pid, *reaper.descendants(nodes.agents[1].pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert nodes.agents[0].wait(_LIMIT_S) == StartAgain.exit_code
    [attempt] = state.load(workspace.repo, nodes.run).attempts
    assert attempt.reason is not None and attempt.reason.kind == "node lost"
    assert str(attempt.reason.problem).startswith("node 1 (")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert nodes.end() == [75, 75]


@pytest.mark.long
def test_nodes_that_cannot_begin_leave_no_attempt(tmp_path: Path, cluster: Callable[[Workspace], Agents]) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=4)
    nodes = cluster(workspace)
    first, second = nodes.start("first", {1: {"OMP_SCHEDULE": "dynamic"}})
    output = first.communicate(timeout=_LIMIT_S)[0]
    assert "variable.OMP_SCHEDULE on node 1" in output and "dynamic" in output
    assert (first.returncode, second.wait(_LIMIT_S)) == (2, 2)
    assert ledger.attempts(workspace.repo, nodes.run) == []


@pytest.mark.long
@pytest.mark.parametrize("node", range(_NODES))
def test_all_agents_end_for_good_with_an_agent_that_cannot_begin(
    tmp_path: Path, cluster: Callable[[Workspace], Agents], node: int
) -> None:
    nodes = cluster(make_workspace(tmp_path / "w", "plain.py", nproc=2))
    own = tmp_path / "scratch" / f"{node}" / f"m5ws-{os.getuid()}"
    home = own / f"node-{node}" / "runs" / nodes.run
    home.mkdir(parents=True)
    own.chmod(0o700)
    with run_lock.lock_run(home):
        nodes.start("first")
        assert all(status in (1, run_lock.RunAlive.exit_code) for status in nodes.end())
    assert ledger.attempts(nodes.workspace.repo, nodes.run) == []


@pytest.mark.soak
def test_ranks_that_wait_for_a_rank_that_failed_on_the_leader_are_stopped(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=2)
    (workspace.root / "train.py").write_text('import os, time\nos.environ["RANK"] == "0" and 1 / 0\ntime.sleep(3600)\n')
    nodes = cluster(workspace)
    nodes.start("first")
    assert nodes.end() == [1, 1]
    [attempt] = state.load(workspace.repo, nodes.run).attempts
    assert attempt.reason is not None and "ZeroDivisionError" in str(attempt.rank_failures["0"])


def _writing(tmp_path: Path, cluster: Callable[[Workspace], Agents], *arguments: str, stops: int = 0) -> Agents:
    """Return the agents of a run without a session that writes output files on each node."""
    workspace = make_workspace(tmp_path / "w", "plain.py", nproc=2, run='outputs = ["out"]')
    (tmp_path / "marks").mkdir()
    script = _FILES.replace("MARKS", str(tmp_path / "marks")).replace("STOPS", str(stops))
    (workspace.root / "train.py").write_text(script)
    workspace.edit("m5ws.toml", '["train.py"]', str(["train.py", *arguments]))
    return cluster(workspace)


def _texts(workspace: Workspace, run: str, folder: Path, *options: str) -> dict[str, str]:
    """Return the texts of the output files of a run by name."""
    workspace.m5ws("outputs", run, str(folder), *options)
    return {path.name: path.read_text() for path in (folder / "out").iterdir()}


@pytest.mark.soak
def test_output_files_of_two_nodes_are_merged_and_reproduced_on_one_machine(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    nodes = _writing(tmp_path, cluster)
    workspace = nodes.workspace
    nodes.start("first")
    assert nodes.end() == [0, 0]
    expected = {f"rank-{rank}.txt": "1" for rank in range(2)} | {f"begun-{rank}.txt": "" for rank in range(2)}
    assert _texts(workspace, nodes.run, tmp_path / "all") == expected | {"equal.txt": "equal", "same.txt": "same"}
    rows = workspace.json("outputs", nodes.run)["outputs"]
    assert [(row["name"], row["files"]) for row in rows] == [("0001-0-final", 4), ("0001-1-final", 4)]
    # Each node removes its own stored files from its disk.
    assert list((tmp_path / "scratch").rglob("rank-*.txt")) == []
    verdict = workspace.json("reproduce", nodes.run)
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["files"] == 6
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.soak  # tests/outputs has the rule
def test_two_nodes_that_wrote_different_content_to_one_path_fail_the_attempt(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    nodes = _writing(tmp_path, cluster, "conflict")
    workspace, run = nodes.workspace, nodes.run
    nodes.start("first")
    assert nodes.end() == [1, 1]
    [attempt] = state.load(workspace.repo, run).attempts
    conflict = f"node 0 and node 1 of attempt 1 wrote different content to out/same.txt, of run {run}"
    assert attempt.standing == "failed" and attempt.reason is not None
    assert (attempt.reason.kind, attempt.reason.problem) == ("outputs conflict", conflict)
    assert conflict in workspace.m5ws("show", run).stdout
    assert conflict in workspace.m5ws("outputs", run, str(tmp_path / "all"), expect=2).stderr
    assert conflict in workspace.m5ws("resume", run, expect=2).stderr
    assert conflict in workspace.json("reproduce", run, expect=2)["sentence"]
    for node in range(_NODES):
        assert _texts(workspace, run, tmp_path / f"{node}", "--node", f"{node}")["same.txt"] == str(node)


@pytest.mark.soak
def test_a_resume_restores_the_files_of_all_nodes_on_each_node_and_on_one_machine(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    nodes = _writing(tmp_path, cluster, stops=2)
    workspace, run = nodes.workspace, nodes.run
    nodes.start("first")
    assert nodes.end() == [1, 1]
    nodes.start("second")
    assert nodes.end() == [1, 1]
    resumed = {f"rank-{rank}.txt": "1 2-restored" for rank in range(2)}
    assert _texts(workspace, run, tmp_path / "second") == resumed | {"equal.txt": "equal", "same.txt": "same"}
    workspace.m5ws("resume", run)
    last = {name: f"{text} 3-restored" for name, text in resumed.items()}
    assert _texts(workspace, run, tmp_path / "third") == last | {"equal.txt": "equal", "same.txt": "same"}
    assert fsck.check(workspace.repo, read_data=True).damage == ()


@pytest.mark.soak
def test_a_follower_with_a_wrong_bit_is_named_and_no_attempt_begins(
    tmp_path: Path, cluster: Callable[[Workspace], Agents]
) -> None:
    """All nodes have one host name here, so the address and the number of the node decide."""
    nodes = cluster(make_workspace(tmp_path / "w", "fsdp.py", nproc=2, run='preflight = "node"'))
    cpu = max(os.sched_getaffinity(0))
    agents = nodes.start("first", {1: wrong_bits.plant(tmp_path, cpu)})
    leader, follower = (agent.communicate(timeout=_LIMIT_S)[0] for agent in agents)
    assert f"failed its checks: arithmetic: cpu {cpu} of" in follower
    assert "node 1" in leader and f"failed its checks: arithmetic: cpu {cpu} of" in leader
    assert [agent.returncode for agent in agents] == [2, 1]
    assert ledger.attempts(nodes.workspace.repo, nodes.run) == []
