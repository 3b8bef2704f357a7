"""A job of AWS Batch by moto itself and a real Podman: two containers of an image, each with an address of its own.

moto drops the overrides of a multi-node job and most of its variables, which the server of the tests adds.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.repository.fsck import fsck
from m5ws.repository.ledger import ledger
from tests.support.machine import batch_queue
from tests.support.machine.batch_queue import Queue
from tests.support.machine.podman import Storage
from tests.support.waiting import wait_for
from tests.support.workspace.workspaces import make_workspace

pytestmark = pytest.mark.services
_NETWORK = "podman"


@pytest.fixture
def image(podman_storage: Storage, monkeypatch: pytest.MonkeyPatch) -> str:
    """An image with torch and m5ws in Podman's storage, by digest."""
    for name, value in podman_storage.variables.items():
        monkeypatch.setenv(name, value)
    return podman_storage.image


@pytest.fixture
def queue(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    socket = tmp_path / "podman.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time", "0", f"unix://{socket}"])
    try:
        wait_for(socket.exists)
        with batch_queue.running_in_containers(tmp_path, str(socket), _NETWORK) as queue:
            for name, value in queue.environment.items():
                monkeypatch.setenv(name, value)
            yield queue
    finally:
        service.terminate()
        service.wait(30)


def test_two_containers_have_the_bits_of_one_machine(tmp_path: Path, image: str, queue: Queue) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    with (workspace.root / "m5ws.toml").open("a") as settings:
        settings.write(
            f"""
[clusters.cloud]
engine = "batch"
region = "{batch_queue.HOME}"
queue = "{batch_queue.QUEUE}"
image = "{image}"
cpus_per_node = 1
memory_mib = 4096
shared = ["{tmp_path}"]
restarts = 0
"""
        )
    alone = workspace.train("--nproc", "2")
    submitted = workspace.json("run", "--on", "cloud", "--nodes", "2", "--env", "warn")
    run = submitted["run"]["id"]
    assert workspace.json("wait", run)["standing"] == "finished"
    assert workspace.states(run) == workspace.states(alone)
    starts = [*ledger.node_starts(workspace.repo, run, 1)]
    assert [start.node for start in starts] == [0, 1] and len({start.host for start in starts}) == 2
    wait_for(lambda: queue.describe(submitted["id"])["status"] == "SUCCEEDED")
    assert fsck.check(workspace.repo).damage == ()
