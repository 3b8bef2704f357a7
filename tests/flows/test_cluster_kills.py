"""Runs on Slurm and on hosts under kills, signals and cuts: every run ends with the bits of an undisturbed run."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from m5ws.engines import submission
from m5ws.records.ledger import CheckpointPublished, State
from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, jobs
from m5ws.runs import state
from m5ws.runs.state import AttemptState
from m5ws.workspace import find
from tests.support.campaigns import soak_page
from tests.support.faults.kills import Scale
from tests.support.machine import run_processes
from tests.support.machine.slurm import Slurm
from tests.support.machine.ssh_hosts import Hosts
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import Workspace, make_workspace

_NODES = (0, 1)
_FAULTS_OF_A_RUN = 20
_PATIENCE_S = 300.0
_ORPHANS_S = 60.0
_HEADER = (
    "| engine | seed | faults | of each kind | runs | attempts | steps of all ranks compared | seconds |",
    "|---|---|---|---|---|---|---|---|",
)
Fault = Callable[["_Disturbed"], bool]
"""Does one fault. Returns False if it found nothing to disturb."""


def _send(number: int, kind: str, nodes: tuple[int, ...]) -> Fault:
    def fault(disturbed: "_Disturbed") -> bool:
        found = run_processes.find(disturbed.run)
        victims = [pid for node in nodes for pid in found.get((kind, node), ())]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(victims)

    return fault


def _killed_submitter(disturbed: "_Disturbed") -> bool:
    """Kill a command that continues the run, at any moment of it."""
    command = disturbed.workspace.start("resume", "--take-over", "--on", disturbed.cluster, disturbed.run)
    try:
        command.wait(disturbed.draw.uniform(0, 3.0))
    except subprocess.TimeoutExpired:
        command.kill()
    return command.wait() == -signal.SIGKILL


def _two_submitters(disturbed: "_Disturbed") -> bool:
    """Two users continue the run at once, which may be alive."""
    words = ("resume", "--take-over", "--on", disturbed.cluster, "--nodes", "2", disturbed.run)
    commands = [disturbed.workspace.start(*words) for _ in range(2)]
    ended = [(command.communicate()[0], command.returncode) for command in commands]
    assert all(status == 0 for _, status in ended), ended
    return True


_COMMON: dict[str, Fault] = {
    **{
        f"kill -9, {kind} of the {place}": _send(signal.SIGKILL, kind, (node,))
        for kind in ("agent", "launcher", "rank")
        for node, place in enumerate(("leader", "follower"))
    },
    **{
        f"{signal.Signals(number).name} to {text}": _send(number, kind, nodes)
        for kind, numbers in (("agent", (signal.SIGTERM, signal.SIGUSR2)), ("rank", (signal.SIGTERM, signal.SIGINT)))
        for number in numbers
        for nodes, text in (((0,), f"the {kind} of node 0"), ((1,), f"the {kind} of node 1"), (_NODES, f"all {kind}s"))
    },
    "submitter killed": _killed_submitter,
    "two submitters": _two_submitters,
}


class _Disturbed:
    """Runs on a cluster that faults disturb, one after another."""

    def __init__(self, workspace: Workspace, cluster: str, draw: random.Random, hurry: Callable[[], None]) -> None:
        self.workspace, self.cluster, self.draw, self._hurry = workspace, cluster, draw, hurry
        whole = workspace.train("--nproc", "2")
        self.expected = _states(workspace, whole)
        self.contents = workspace.history(whole).contents
        self.run = ""
        self.attempts = 0

    def begin(self) -> None:
        self.run = self.workspace.json("run", "--on", self.cluster, "--nodes", "2")["run"]["id"]

    def newest(self) -> AttemptState | None:
        return state.load_newest(self.workspace.repo, self.run).newest

    def settle(self, before: tuple[int, int]) -> tuple[int, int] | None:
        """Wait until the run has done a step after `before`, an attempt and its step; None: until it has finished.

        A run whose jobs have ended is resumed, as its user does.
        """
        end_s = time.monotonic() + _PATIENCE_S
        looked_s = time.monotonic()
        while True:
            newest = self.newest()
            if newest is not None and newest.standing == "finished":
                return None
            now = (newest.attempt, newest.last_step) if newest is not None else (0, 0)
            if newest is not None and newest.standing == "running" and now > before and newest.last_step:
                return now
            assert time.monotonic() < end_s, (before, now, newest, self.workspace.m5ws("show", self.run).stdout)
            if time.monotonic() > looked_s + 2:
                looked_s = time.monotonic()
                self._hurry()
                if self._is_idle():
                    words = ("--take-over", "--on", self.cluster, "--nodes", "2", self.run)
                    done = self.workspace.m5ws("resume", *words, expect=None)
                    assert done.returncode == 0 or "has finished" in done.stderr, done.stderr
            time.sleep(0.2)

    def _is_idle(self) -> bool:
        """Return True if no job of the run waits or runs."""
        submitted = jobs.of_run(self.workspace.repo, self.run)[-4:]
        engines = submission.engine_of_job(find(self.workspace.root).settings, submitted[-1])
        return all(engines.state(job.name).standing in ("ended", "unknown") for job in submitted)

    def judge(self) -> int:
        """Compare the finished run with the undisturbed run; return the number of compared states."""
        repo = self.workspace.repo
        announced = [
            event.name
            for attempt in ledger.attempts(repo, self.run)
            for _, event in ledger.read_events(repo, self.run, attempt)
            if isinstance(event, CheckpointPublished)
        ]
        assert set(announced) <= {*checkpoints.valid(repo, self.run)}
        found = _states(self.workspace, self.run)
        assert found.items() <= self.expected.items()
        assert {step for _, step in found} == {step for _, step in self.expected}
        for name in checkpoints.valid(repo, self.run):
            content = checkpoints.find(repo, self.run, name)[1].content
            assert content == self.contents.get(checkpoints.step_of(name), content), name
        standings = [attempt.standing for attempt in state.load(repo, self.run).attempts]
        assert standings.count("finished") == 1 and standings[-1] == "finished"
        self.attempts += len(standings)
        end_s = time.monotonic() + _ORPHANS_S
        while left := run_processes.commands(self.run):
            assert time.monotonic() < end_s, left
            time.sleep(0.5)
        assert fsck.check(repo, read_data=True).damage == ()
        return len(found)


def _states(workspace: Workspace, run: str) -> dict[tuple[str, int], object]:
    """Return the fingerprints of all ranks after each step, of all attempts."""
    repo, found = workspace.repo, dict[tuple[str, int], object]()
    for attempt in ledger.attempts(repo, run):
        for origin, event in ledger.read_events(repo, run, attempt):
            if isinstance(event, State):
                key, value = (origin, event.step), (event.tensors, event.generators)
                assert found.setdefault(key, value) == value, f"rank {origin} did step {event.step} with other bits"
    return found


def _workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.3")
    workspace.edit("config.yaml", "steps: 10", "steps: 80")
    workspace.edit("m5ws.toml", "checkpoint_every = 4", "checkpoint_every = 2")
    return workspace


def _disturb(disturbed: _Disturbed, faults: dict[str, Fault], scale: Scale, seed: int) -> None:
    """Disturb runs until all faults are done, each kind equally often; write the row of the campaign."""
    began_s, done, runs, compared = time.monotonic(), Counter[str](), 0, 0
    while sum(done.values()) < scale.kills:
        disturbed.begin()
        runs, of_run = runs + 1, 0
        at = (0, 0)
        while (now := disturbed.settle(at)) is not None:
            at = now
            if of_run == _FAULTS_OF_A_RUN or sum(done.values()) == scale.kills:
                continue
            time.sleep(disturbed.draw.uniform(0, 0.6))
            least = min(done[name] for name in faults)
            name = disturbed.draw.choice([name for name in faults if done[name] == least])
            print(f"{time.monotonic() - began_s:6.0f} s, {at}: {name}", flush=True)
            if faults[name](disturbed):
                done[name] += 1
                of_run += 1
        compared += disturbed.judge()
        kinds = ", ".join(f"{count} × {name}" for name, count in sorted(done.items()))
        seconds = f"{time.monotonic() - began_s:,.0f}"
        cells = (disturbed.cluster, seed, sum(done.values()), kinds, runs, disturbed.attempts, compared, seconds)
        print(row := "| " + " | ".join(map(str, cells)) + " |", flush=True)
        if scale.soak:
            soak_page.put("clusters", _HEADER, row, cells=2)


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    count = request.config.getoption("--campaign-count")
    return Scale(count or 150, soak=count is None)


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_runs_on_hosts_survive_kills_signals_and_cut_links(
    tmp_path: Path, hosts: Hosts, on_hosts: Callable[[Workspace], Workspace], scale: Scale
) -> None:
    seed = scale.seed()
    workspace = on_hosts(_workspace(tmp_path))
    workspace.edit("m5ws.toml", "restarts = 2", "restarts = 1000")

    def cut(node: int) -> Fault:
        link = f"{hosts.namespaces['box0'].rpartition('-')[0]}v{node}"

        def fault(disturbed: _Disturbed) -> bool:
            subprocess.run(("ip", "link", "set", link, "down"), check=True)
            time.sleep(disturbed.draw.choice((1.0, 20.0)))
            subprocess.run(("ip", "link", "set", link, "up"), check=True)
            return True

        return fault

    faults = _COMMON | {f"link of node {node} cut": cut(node) for node in _NODES}
    _disturb(_Disturbed(workspace, "lab", random.Random(seed), lambda: None), faults, scale, seed)


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_runs_on_slurm_survive_kills_signals_requeues_preemption_and_lost_nodes(
    tmp_path: Path, slurm: Slurm, on_slurm: Callable[[Workspace], Workspace], scale: Scale
) -> None:
    seed = scale.seed()
    workspace = on_slurm(_workspace(tmp_path))
    workspace.edit("m5ws.toml", "restarts = 2", "restarts = 1000")

    def job() -> str:
        return slurm.call("squeue", "-h", "-p", "main", "-t", "RUNNING", "-o", "%i").partition("\n")[0]

    def hurry() -> None:
        """Let jobs that Slurm starts again begin soon, not in two minutes."""
        soon = f"{datetime.now().astimezone() + timedelta(seconds=5):%Y-%m-%dT%H:%M:%S}"
        for line in slurm.call("squeue", "-h", "-t", "PENDING", "-o", "%i|%S|%r").splitlines():
            number, start, reason = line.split("|", 2)
            if reason == "BeginTime" and start > soon:
                slurm.call("scontrol", "update", f"JobId={number}", "StartTime=now+3seconds")

    def requeue(_: _Disturbed) -> bool:
        found = job()
        if found:
            slurm.call("scontrol", "requeue", found)
        return bool(found)

    def lose(disturbed: _Disturbed) -> bool:
        node = disturbed.draw.choice(("n1", "n2"))
        slurm.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        time.sleep(3)
        with suppress(AssertionError):  # A node that answers may be back already.
            slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return True

    def preempt(_: _Disturbed) -> bool:
        slurm.call(
            "sbatch", "--partition=high", "--nodes=2", "--ntasks-per-node=2", "--wrap=sleep 2", "--output=/dev/null"
        )
        wait_for(lambda: not slurm.call("squeue", "-h", "-p", "high", "-t", "PENDING,RUNNING"))
        return True

    def limit(_: _Disturbed) -> bool:
        found = job()
        if found:
            left = slurm.call("squeue", "-h", "-j", found, "-o", "%M").split(":")
            slurm.call("scontrol", "update", f"JobId={found}", f"TimeLimit={int(left[-2]) + 1}")
            time.sleep(5)
            with suppress(AssertionError):  # The job may have ended for good.
                slurm.call("scontrol", "update", f"JobId={found}", "TimeLimit=UNLIMITED")
        return bool(found)

    faults: dict[str, Fault] = _COMMON | {
        "scontrol requeue": requeue,
        "node down": lose,
        "preemption": preempt,
        "time limit": limit,
        "slurmctld killed": lambda _: slurm.kill_and_restart("slurmctld"),
        "slurmd killed": lambda _: slurm.kill_and_restart("slurmd"),
    }
    _disturb(_Disturbed(workspace, "big", random.Random(seed), hurry), faults, scale, seed)
