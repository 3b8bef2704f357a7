"""Fixtures of the flows: ranks are forks, except in tests that start m5ws as a process."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kubernetes import api_server as api_servers
from tests.support.kubernetes import controller as controllers
from tests.support.kubernetes.api_server import Server
from tests.support.kubernetes.controller import Controller
from tests.support.machine import batch_queue, ssh_hosts
from tests.support.machine import slurm as slurm_servers
from tests.support.machine.agents import Agents
from tests.support.machine.batch_queue import Queue
from tests.support.machine.slurm import Slurm
from tests.support.machine.ssh_hosts import Hosts
from tests.support.ranks.base_runs import BaseRuns
from tests.support.ranks.forks import ForkParents
from tests.support.workspace import command_line
from tests.support.workspace.workspaces import Workspace


@pytest.fixture(scope="module", autouse=True)
def _forked_ranks(fork_parents: ForkParents) -> Iterator[None]:
    with command_line.forked_ranks(fork_parents):
        yield


@pytest.fixture(scope="session")
def base_runs(session_directory: Path) -> BaseRuns:
    return BaseRuns(session_directory / "base-runs")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_servers.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with ssh_hosts.running(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@pytest.fixture
def on_slurm(tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workspace], Workspace]:
    """A function that adds the Slurm to a workspace, as the cluster `big`."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    lines = f"""
[clusters.big]
engine = "slurm"
scratch = "{tmp_path}/scratch-$SLURMD_NODENAME"
setup = ["export M5WS_MASTER=127.0.0.1:${{M5WS_MASTER##*:}}"]
output = "{tmp_path}/%x-%j.out"
shared = ["{tmp_path}"]
warn_s = 60
restarts = 2
"""
    return lambda workspace: _with(workspace, lines)


@pytest.fixture
def on_hosts(tmp_path: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workspace], Workspace]:
    """A function that adds the hosts to a workspace, as the cluster `lab`."""
    monkeypatch.setenv("PATH", str(hosts.programs), prepend=":")
    lines = f"""
[clusters.lab]
engine = "hosts"
hosts = ["box0", "box1"]
master = "{hosts.addresses["box0"]}"
scratch = "{tmp_path}/scratch-$M5WS_NODE"
shared = ["{tmp_path}"]
restarts = 2
"""
    return lambda workspace: _with(workspace, lines)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    with batch_queue.running_in_namespaces(tmp_path_factory.mktemp("batch")) as running:
        yield running


@pytest.fixture
def on_batch(tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Callable[[Workspace], Workspace]:
    """A function that adds the queue of AWS Batch to a workspace, as the cluster `cloud`."""
    for name, value in queue.environment.items():
        monkeypatch.setenv(name, value)
    lines = f"""
[clusters.cloud]
engine = "batch"
region = "{batch_queue.HOME}"
queue = "{batch_queue.QUEUE}"
image = "{batch_queue.IMAGE}"
cpus_per_node = 2
memory_mib = 4096
python = "{sys.executable}"
scratch = "{tmp_path}/scratch-$AWS_BATCH_JOB_NODE_INDEX"
shared = ["{tmp_path}"]
restarts = 2
"""
    return lambda workspace: _with(workspace, lines)


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_servers.running(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, api_server: Server) -> Iterator[Controller]:
    with (
        controllers.in_namespaces(2) as nodes,
        controllers.running(api_server, nodes, tmp_path_factory.mktemp("pods")) as running,
    ):
        yield running


@pytest.fixture
def on_kubernetes(
    tmp_path: Path, api_server: Server, pods: Controller, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Workspace], Workspace]:
    """A function that adds the server of Kubernetes to a workspace, as the cluster `k8s`."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    lines = f"""
[clusters.k8s]
engine = "kubernetes"
image = "{batch_queue.IMAGE}"
cpus_per_node = 2
memory_mib = 4096
python = "{sys.executable}"
scratch = "{tmp_path}/scratch"
shared = ["{tmp_path}"]
restarts = 2
"""
    return lambda workspace: _with(workspace, lines)


def _with(workspace: Workspace, lines: str) -> Workspace:
    with (workspace.root / "m5ws.toml").open("a") as settings:
        settings.write(lines)
    return workspace


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[Workspace], Agents]]:
    made: list[Agents] = []

    def make(workspace: Workspace) -> Agents:
        made.append(Agents(workspace, tmp_path / "scratch"))
        return made[-1]

    yield make
    for agent in (agent for each in made for agent in each.agents):
        agent.kill()
        agent.wait()
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
