"""Agents of a run on this machine, one for each of two nodes, as a scheduler starts them."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from m5ws import workspace as workspaces
from m5ws.attempts import planning
from m5ws.attempts.planning import RunOptions
from m5ws.repository.references import checkpoints, runs
from tests.support.network import ports
from tests.support.workspace import command_line
from tests.support.workspace.workspaces import Workspace

NODES = 2
_LIMIT_S = 900.0


class Agents:
    """Agents of a run on this machine, one for each node, as a scheduler starts them."""

    def __init__(self, workspace: Workspace, scratch: Path) -> None:
        self.workspace, self._scratch = workspace, scratch
        found = workspaces.find(workspace.root)
        snapshot = workspace.json("snapshot")["id"]
        repo = found.repository()
        spec = planning.spec(found.settings.run, RunOptions(nproc=found.settings.run.nproc))
        run = planning.new_run(snapshot, spec)
        runs.publish(repo, found.ports(repo).sign(run))
        self.run = run.id
        self.agents: list[subprocess.Popen[str]] = []

    def start(self, job: str, more: Mapping[int, dict[str, str]] | None = None) -> list["subprocess.Popen[str]"]:
        """Start the agents of all nodes, the leader last. `more` has further variables of a node."""
        port = ports.free(2)
        given = more or {}
        self.agents = [self._agent(node, job, port, given.get(node, {})) for node in reversed(range(NODES))][::-1]
        return self.agents

    def _agent(self, node: int, job: str, port: int, more: dict[str, str]) -> "subprocess.Popen[str]":
        place = {"M5WS_NODE": str(node), "M5WS_NODES": str(NODES), "M5WS_MASTER": f"127.0.0.1:{port}", "M5WS_JOB": job}
        scratch = self._scratch / f"{node}"
        scratch.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "m5ws", "-C", str(self.workspace.root), "agent", self.run]
        return subprocess.Popen(
            [*command, "--scratch", str(scratch)],
            env=command_line.inherited() | place | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> list[int]:
        """Wait for all agents, and return their exit statuses."""
        outputs = [agent.communicate(timeout=_LIMIT_S)[0] for agent in self.agents]
        for node, output in enumerate(outputs):
            print(f"--- node {node}\n{output}")
        return [agent.returncode for agent in self.agents]

    def wait_for(self, reached: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _LIMIT_S
        while not reached():
            assert time.monotonic() < end_s and all(agent.poll() is None for agent in self.agents), self.end()
            time.sleep(0.1)

    def published(self) -> list[int]:
        return [checkpoints.step_of(name) for name in checkpoints.valid(self.workspace.repo, self.run)]
