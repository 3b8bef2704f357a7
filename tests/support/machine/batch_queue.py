"""A queue of AWS Batch on this machine (batch_server.py). Its nodes are network namespaces, or share the machine's."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.conftest import loud_skip
from tests.support.machine import namespaces
from tests.support.network import ports
from tests.support.s3.s3_servers import ENVIRONMENT
from tests.support.workspace.command_line import inherited

QUEUE = "train"
HOME, AWAY = ENVIRONMENT["AWS_DEFAULT_REGION"], "us-east-1"
"""The region of a client without another region, and another region. Both have the queue."""
IMAGE = f"registry.example.org/train@sha256:{'a' * 64}"
_START_S = 60.0
_OF_NODES = {name: value for name, value in ENVIRONMENT.items() if name != "AWS_DEFAULT_REGION"}
_LOOPBACK: list[tuple[str, list[str]]] = [("127.0.0.1", [])]


class Queue(msgspec.Struct, frozen=True):
    """A running queue. `folder` has the output and the process id of each node, and files that change the queue."""

    folder: Path
    endpoint: str
    addresses: dict[str, tuple[str, ...]] = {}
    """Addresses of the nodes of each region."""
    links: dict[str, tuple[str, ...]] = {}
    """The links of the nodes of each region, if they are network namespaces."""
    here: str = "127.0.0.1"
    """The address of this machine for all nodes."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a client."""
        return ENVIRONMENT | {"AWS_ENDPOINT_URL_BATCH": self.endpoint}

    def client(self, service: str = "batch", region: str = HOME) -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=region,
            aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        )

    def describe(self, job: str, region: str = HOME) -> Any:
        """Return a job, as Batch describes it."""
        return self.client(region=region).describe_jobs(jobs=[job])["jobs"][0]

    def output(self, name: str, attempt: int, node: int) -> str:
        return (self.folder / f"{name}-{attempt}-{node}.log").read_text(errors="replace")

    def hold(self, reason: str) -> None:
        """Have all jobs of the home region wait, for a reason."""
        (self.folder / f"hold-{HOME}").write_text(reason)

    def release(self) -> None:
        (self.folder / f"hold-{HOME}").unlink()

    def silence(self, region: str, *, silent: bool) -> None:
        """Let the API of a region answer no request, or answer again."""
        file = self.folder / f"silent-{region}"
        file.touch() if silent else file.unlink(missing_ok=True)

    def cut(self, region: str, *, peers: bool) -> None:
        """Cut the nodes of a region off from this machine; with `peers`, from each other too."""
        for link, address in zip(self.links[region], self.addresses[region], strict=True):
            # Nodes reach each other by the bridge, without the routes of this machine.
            namespaces.call(
                *(("ip", "link", "set", link, "down") if peers else ("ip", "route", "add", "blackhole", address))
            )

    def mend(self, region: str) -> None:
        """Connect the nodes of a region again."""
        for link, address in zip(self.links[region], self.addresses[region], strict=True):
            namespaces.call("ip", "link", "set", link, "up")
            subprocess.run(("ip", "route", "del", "blackhole", address), capture_output=True, check=False)

    def lose_an_instance(self) -> None:
        """End the attempt that runs as AWS does when it loses an instance."""
        (self.folder / "lost").touch()

    def take_instances(self) -> None:
        """End the attempt that runs as AWS does when it shuts the instances down: containers get 30 seconds."""
        (self.folder / "taken").touch()


@contextmanager
def running(folder: Path) -> Iterator[Queue]:
    """Yield a queue whose nodes share the network of this machine."""
    with _serving(folder, dict.fromkeys((HOME, AWAY), _LOOPBACK * 4)) as queue:
        yield queue


@contextmanager
def running_in_namespaces(folder: Path, nodes: int = 2) -> Iterator[Queue]:
    """Yield a queue whose nodes are network namespaces, or skip the test loudly if this machine cannot have them.

    Each region has a number of nodes.
    """
    if shutil.which("ip") is None or os.getuid() != 0:
        loud_skip("no nodes of AWS Batch: network namespaces need ip (apt-get install iproute2) and root")
    tag, net = f"m5b{secrets.token_hex(3)}", f"198.19.{os.getpid() % 250}"
    with ExitStack() as stack:
        namespaces.make_bridge(stack, tag, f"{net}.1/24")
        places: dict[str, list[tuple[str, list[str]]]] = {HOME: [], AWAY: []}
        links: dict[str, list[str]] = {HOME: [], AWAY: []}
        for number in range(2 * nodes):
            region = (HOME, AWAY)[number // nodes]
            space, link, address = f"{tag}-{number}", f"{tag}v{number}", f"{net}.{number + 2}"
            namespaces.connect(stack, space, tag, link, address, gateway=f"{net}.1")
            places[region].append((address, ["ip", "netns", "exec", space]))
            links[region].append(link)
        queue = stack.enter_context(_serving(folder, places))
        named = {region: tuple(each) for region, each in links.items()}
        yield msgspec.structs.replace(queue, links=named, here=f"{net}.1")


@contextmanager
def running_in_containers(folder: Path, socket: str, network: str) -> Iterator[Queue]:
    """Yield a queue whose nodes are containers on a network, by a socket with Docker's API."""
    with _serving(folder, {}, {"DOCKER_HOST": f"unix://{socket}", "MOTO_DOCKER_NETWORK_NAME": network}) as queue:
        yield queue


@contextmanager
def _serving(
    folder: Path, nodes: Mapping[str, Sequence[tuple[str, list[str]]]], more: Mapping[str, str] = {}
) -> Iterator[Queue]:
    port = ports.free()
    server = str(Path(__file__).with_name("batch_server.py"))
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, server, str(port), str(folder), json.dumps(nodes)],
            env=inherited() | _OF_NODES | dict(more),
            stdout=output,
            stderr=output,
        )
    addresses = {region: tuple(address for address, _ in each) for region, each in nodes.items()}
    queue = Queue(folder, f"http://127.0.0.1:{port}", addresses)
    try:
        _wait(port, process, folder / "server.log")
        for region in (HOME, AWAY):
            _make_queue(queue, region)
        yield queue
    finally:
        process.terminate()
        process.wait(10)


def _make_queue(queue: Queue, region: str) -> None:
    roles, network, batch = queue.client("iam"), queue.client("ec2", region), queue.client(region=region)
    role = roles.create_role(RoleName=f"batch-{region}", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    profile = roles.create_instance_profile(InstanceProfileName=f"nodes-{region}")["InstanceProfile"]["Arn"]
    vpc = network.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = network.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    group = network.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    resources = {
        "type": "EC2", "minvCpus": 0, "maxvCpus": 384, "instanceTypes": ["p5.48xlarge"], "subnets": [subnet],
        "securityGroupIds": [group], "instanceRole": profile,
    }  # fmt: skip
    batch.create_compute_environment(
        computeEnvironmentName="nodes", type="MANAGED", state="ENABLED", serviceRole=role, computeResources=resources
    )
    order = [{"order": 1, "computeEnvironment": "nodes"}]
    batch.create_job_queue(jobQueueName=QUEUE, state="ENABLED", priority=1, computeEnvironmentOrder=order)


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server of AWS Batch did not start:\n{log.read_text(errors='replace')[-2000:]}")
