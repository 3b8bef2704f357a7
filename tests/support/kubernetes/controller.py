"""The controllers of JobSets and Jobs, and kubelets: pods are processes of this machine, or of network namespaces.

They follow the guides of Kubernetes (https://kubernetes.io/docs/concepts/workloads/controllers/job/) and JobSet
(https://jobset.sigs.k8s.io/docs/concepts/): variables and `$(NAME)` of a container, the rules of failed pods and of
failed Jobs, SIGTERM and then SIGKILL. There are no images, volumes, devices and schedulers.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.conftest import loud_skip
from tests.support.kubernetes.api_server import Server
from tests.support.machine import namespaces
from tests.support.workspace.command_line import inherited

_LABELS = "jobset.sigs.k8s.io"
_POLL_S = 0.05
_REFERENCE = re.compile(r"\$\$|\$\((\w+)\)")
_LABEL = re.compile(r"metadata\.labels\['(.+)'\]")


class Nodes:
    """Machines that run one pod each: the words before a command, and a way to name the address of node 0.

    `processes` returns the processes of a machine, whose container ends with its first process.
    """

    def __init__(
        self,
        before: Sequence[Sequence[str]],
        name_master: Callable[[str], None],
        processes: Callable[[int], Sequence[int]],
    ) -> None:
        self.before, self.name_master, self.processes = before, name_master, processes


def local(count: int) -> Nodes:
    """Return machines that share the network of this machine."""
    return Nodes([()] * count, lambda _: None, lambda _: ())


@contextmanager
def in_namespaces(count: int) -> Iterator[Nodes]:
    """Yield machines that are network namespaces, or skip the test loudly if this machine cannot have them."""
    if shutil.which("ip") is None or os.getuid() != 0:
        loud_skip("no nodes of Kubernetes: network namespaces need ip (apt-get install iproute2) and root")
    tag, net = f"m5k{secrets.token_hex(3)}", f"198.18.{os.getpid() % 250}"
    files = [Path(f"/etc/netns/{tag}-{number}/hosts") for number in range(count)]

    def name_master(host: str) -> None:
        for file in files:
            # `ip netns exec` mounts the file as /etc/hosts.
            file.write_text(f"127.0.0.1 localhost\n{net}.2 {host}\n")

    with ExitStack() as stack:
        namespaces.make_bridge(stack, tag, f"{net}.1/24")
        for number in range(count):
            namespaces.connect(stack, f"{tag}-{number}", tag, f"{tag}v{number}", f"{net}.{number + 2}", f"{net}.1")
        name_master("localhost.invalid")
        names = [f"{tag}-{number}" for number in range(count)]

        def processes(number: int) -> list[int]:
            listed = subprocess.run(["ip", "netns", "pids", names[number]], capture_output=True, text=True, check=True)
            return [int(word) for word in listed.stdout.split()]

        yield Nodes([("ip", "netns", "exec", name) for name in names], name_master, processes)


class Controller:
    """Runs all JobSets of a server. `folder` gets the output of each pod. `hold` keeps pods pending, with a reason.

    `ends` lists the failed starts: the pod that failed first, the statuses of all pods, and the reason of the Job.
    """

    def __init__(self, server: Server, nodes: Nodes, folder: Path) -> None:
        self.server, self.nodes, self.folder = server, nodes, folder
        self.hold: str | None = None
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self.disrupted: set[tuple[str, int]] = set()
        self.ends: list[tuple[int, list[int], str]] = []
        self.is_closed = False

    def evict(self, name: str, node: int) -> None:
        """Evict a pod, as the eviction API and a drained node do."""
        self.disrupted.add((name, node))
        self.processes[name, node].terminate()

    def kill(self, name: str, node: int) -> None:
        """Kill all processes of a pod, as a kernel without memory does."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name, node].pid, signal.SIGKILL)
        for process in self.nodes.processes(node):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def run(self) -> None:
        """Run each new JobSet to its end."""
        known: dict[str, threading.Thread] = {}
        while not self.is_closed:
            for name in [name for name in list(self.server.jobsets) if name not in known]:
                known[name] = threading.Thread(target=self._run_jobset, args=(name,))
                known[name].start()
            time.sleep(_POLL_S)
        for thread in known.values():
            thread.join()

    def _run_jobset(self, name: str) -> None:
        jobset = self.server.jobsets[name]
        policy, restarts = jobset["spec"]["failurePolicy"], 0
        while (reason := self._run_job(name, jobset, restarts)) is not None:
            rule = next((each for each in policy["rules"] if _matches(each, reason)), {"action": "RestartJobSet"})
            if reason == "":
                self._end(name, restarts, "Completed", "jobset completed successfully")
            elif rule["action"] == "FailJobSet":
                self._end(name, restarts, "Failed", "applying FailJobSet failure policy action")
            elif restarts == policy["maxRestarts"]:
                self._end(name, restarts, "Failed", "jobset failed due to reaching max number of restarts")
            else:
                restarts += 1
                continue
            break

    def _run_job(self, name: str, jobset: dict[str, Any], restarts: int) -> str | None:
        """Run the pods of a start. Return the reason of a failed Job, empty after a success, None if it was deleted."""
        spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        labels = spec["template"]["metadata"]["labels"] | {
            f"{_LABELS}/jobset-name": name,
            f"{_LABELS}/jobset-uid": jobset["metadata"]["uid"],
            f"{_LABELS}/restart-attempt": str(restarts),
        }
        indexes = range(spec["completions"])
        while self.hold is not None:
            self._show(name, jobset, [_pod("Pending", self.hold) for _ in indexes], restarts)
            if self._is_gone(name, jobset):
                return None
            time.sleep(_POLL_S)
        subdomain = jobset["spec"]["network"].get("subdomain", name)
        self.nodes.name_master(f"{name}-node-0-0.{subdomain}")
        pods = [self._start(name, spec["template"]["spec"], labels, index, restarts) for index in indexes]
        failed, is_gone = None, False
        while failed is None and not is_gone and any(pod.poll() != 0 for pod in pods):
            self._show(name, jobset, [_pod("Running" if pod.poll() is None else "Succeeded") for pod in pods], restarts)
            failed = next((index for index in indexes if pods[index].poll() not in (None, 0)), None)
            is_gone = self._is_gone(name, jobset)
            time.sleep(_POLL_S)
        self._stop(name, pods, spec["template"]["spec"]["terminationGracePeriodSeconds"])
        if is_gone:
            return None
        if failed is None:
            return ""
        reason = self._failure(spec, (name, failed), pods[failed].returncode)
        self.ends.append((failed, [pod.returncode for pod in pods], reason))
        return reason

    def _failure(self, spec: dict[str, Any], pod: tuple[str, int], status: int) -> str:
        """Return the reason of a failed Job, by the first rule that matches its failed pod."""
        status = status if status >= 0 else 128 - status
        is_disrupted = pod in self.disrupted
        self.disrupted.discard(pod)
        for rule in spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if (codes and status in codes["values"]) or (rule.get("onPodConditions") and is_disrupted):
                return "PodFailurePolicy"
        return "BackoffLimitExceeded"

    def _start(
        self, name: str, pod: dict[str, Any], labels: Mapping[str, str], index: int, restarts: int
    ) -> "subprocess.Popen[bytes]":
        (container,) = pod["containers"]
        variables = {"JOB_COMPLETION_INDEX": str(index), **_variables(container["env"], labels)}
        words = [*self.nodes.before[index], *(_expanded(word, variables) for word in container["command"])]
        with (self.folder / f"{name}-{restarts}-{index}.log").open("wb") as log:
            process = subprocess.Popen(
                words, env=inherited() | variables, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[name, index] = process
        return process

    def _stop(self, name: str, pods: "Sequence[subprocess.Popen[bytes]]", grace_s: float) -> None:
        for pod in pods:
            if pod.poll() is None:
                pod.terminate()
        end_s = time.monotonic() + grace_s
        while time.monotonic() < end_s and any(pod.poll() is None for pod in pods):
            time.sleep(_POLL_S)
        for node, pod in enumerate(pods):
            self.kill(name, node)
            pod.wait()

    def _show(self, name: str, jobset: dict[str, Any], pods: list[dict[str, Any]], restarts: int) -> None:
        with self.server.lock:
            if not self._is_gone(name, jobset):
                self.server.pods[name] = pods
                jobset["status"] = {"restarts": restarts, "replicatedJobsStatus": []}

    def _end(self, name: str, restarts: int, state: str, message: str) -> None:
        with self.server.lock:
            if (jobset := self.server.jobsets.get(name)) is not None:
                condition = {"type": state, "status": "True", "reason": state, "message": message}
                status = {"restarts": restarts, "terminalState": state, "conditions": [condition]}
                jobset["status"] = status

    def _is_gone(self, name: str, jobset: dict[str, Any]) -> bool:
        return self.is_closed or self.server.jobsets.get(name) is not jobset


@contextmanager
def running(server: Server, nodes: Nodes, folder: Path) -> Iterator[Controller]:
    """Yield a controller that runs."""
    controller = Controller(server, nodes, folder)
    thread = threading.Thread(target=controller.run)
    thread.start()
    try:
        yield controller
    finally:
        controller.is_closed = True
        thread.join()


def _matches(rule: Mapping[str, Any], reason: str) -> bool:
    return not rule.get("onJobFailureReasons") or reason in rule["onJobFailureReasons"]


def _variables(listed: Sequence[dict[str, Any]], labels: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container, with values from labels of its pod."""
    found: dict[str, str] = {}
    for each in listed:
        if "value" in each:
            found[each["name"]] = _expanded(each["value"], found)
        else:
            match = _LABEL.fullmatch(each["valueFrom"]["fieldRef"]["fieldPath"])
            assert match is not None
            found[each["name"]] = labels[match[1]]
    return found


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a word of a command as a kubelet passes it on."""
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]) if match[1] else "$", text)


def _pod(phase: str, reason: str | None = None) -> dict[str, Any]:
    placed = {"type": "PodScheduled", "status": "True"}
    if reason is not None:
        placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
    return {"metadata": {"name": "pod"}, "spec": {"containers": []}, "status": {"phase": phase, "conditions": [placed]}}
