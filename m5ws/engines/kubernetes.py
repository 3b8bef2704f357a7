"""Kubernetes, by JobSet (https://jobset.sigs.k8s.io): an Indexed Job with a pod for each node, started again as one.

Never run on a cluster. The tests compare manifests with the schema of JobSet 0.12, and the requests with a server that
answers as the API reference describes.

A pod with status 75, a killed pod, or an evicted pod fails its Job by the rules of its pods. The JobSet then starts all
pods again, up to `restarts` times. After another failure of a pod, nothing is started again.
"""

import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec

from m5ws import secret_gate
from m5ws.config.settings import KubernetesCluster
from m5ws.engines import documents, starts
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput

_HINT = "`m5ws doctor` shows the engines that answer. `kubectl get jobsets` must work without a question."
_GROUP, _VERSION, _LABELS = "jobset.x-k8s.io", "v1alpha2", "jobset.sigs.k8s.io"
_QUEUE = "kueue.x-k8s.io/queue-name"
_PORT = 29_500
"""A pod has network interfaces of its own."""
_KEPT_S = 86_400
"""Time for which Kubernetes keeps a JobSet after its end."""
_SHM = "/dev/shm"  # noqa: S108  no file is made in it
_AGAIN = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {"action": "FailJob", "onExitCodes": {"containerName": "agent", "operator": "In", "values": [75, 137]}},
]
"""Ends of a pod after which all pods are started again: an eviction, a request of the agents, and SIGKILL."""


class Kubernetes(msgspec.Struct, frozen=True):
    """`Engine` with the settings of a namespace."""

    settings: KubernetesCluster

    def render(self, request: JobRequest) -> str:
        """As `Engine.render`: the manifest of a JobSet. Raises SecretText."""
        own = self.settings
        # Users who may list the JobSets of a namespace can read a manifest.
        secret_gate.refuse(own, "the cluster")
        secret_gate.refuse({"agent": request.agent}, "the job")
        job = {
            "parallelism": request.nodes,
            "completions": request.nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": _AGAIN},
            "template": {"metadata": {"labels": self._labels(request)}, "spec": self._pod(request)},
        }
        queue = {_QUEUE: own.queue} if own.queue is not None else {}
        return documents.write(
            {
                "apiVersion": f"{_GROUP}/{_VERSION}",
                "kind": "JobSet",
                "metadata": {"name": request.name, "labels": self._labels(request) | queue},
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "failurePolicy": {
                        "maxRestarts": own.restarts,
                        "restartStrategy": "BlockingRecreate",
                        "rules": [
                            {"name": "again", "action": "RestartJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                            {"name": "ended", "action": "FailJobSet"},
                        ],
                    },
                    "ttlSecondsAfterFinished": _KEPT_S,
                    "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
                },
            }
        )

    def _labels(self, request: JobRequest) -> dict[str, str]:
        return self.settings.labels | {"m5ws-run": request.run}

    def _pod(self, request: JobRequest) -> dict[str, Any]:
        own = self.settings
        volumes = dict(self._volumes())
        # Kubernetes ends pods by SIGTERM. The agent gets the warning of a scheduler: it saves, and asks for a start.
        agent = starts.command(own.python, request.agent, signal.SIGUSR2)
        script = "\n".join((*own.setup, f"exec {shlex.join(agent)}"))
        container = {
            "name": "agent",
            "image": own.image,
            # Kubernetes itself replaces $(NAME) in a command, and $$ by $.
            "command": ["bash", "-c", script.replace("$", "$$")],
            "env": self._variables(request),
            "envFrom": [{"secretRef": {"name": name}} for name in own.secrets],
            "resources": self._resources(),
            "volumeMounts": [{"name": f"volume-{number}", "mountPath": path} for number, path in enumerate(volumes)],
        }
        pod: dict[str, Any] = {
            # The JobSet starts pods again, all at once.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": own.grace_s,
            # Agents use no API of Kubernetes.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "nodeSelector": own.node_selector,
            "tolerations": [{"key": key, "operator": "Exists"} for key in own.tolerations],
            "containers": [container],
            "volumes": [{"name": f"volume-{number}"} | volume for number, volume in enumerate(volumes.values())],
        }
        return pod if own.service_account is None else pod | {"serviceAccountName": own.service_account}

    def _variables(self, request: JobRequest) -> list[dict[str, Any]]:
        """Return the variables of a pod. Kubernetes adds JOB_COMPLETION_INDEX, the number of the node."""
        name = request.name
        values = {
            "M5WS_CONTAINER_IMAGE": self.settings.image,
            "M5WS_NODES": str(request.nodes),
            "M5WS_MASTER": f"{name}-node-0-0.{name}:{_PORT}",
        }
        labels = {"M5WS_JOB": "jobset-uid", "M5WS_RESTART": "restart-attempt"}
        paths = {key: f"metadata.labels['{_LABELS}/{label}']" for key, label in labels.items()}
        return [
            *({"name": key, "value": value} for key, value in values.items()),
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in paths.items()),
        ]

    def _resources(self) -> dict[str, Any]:
        """Return the resources of a pod. The kernel would slow down a pod with a limit of its CPUs."""
        own = self.settings
        devices = {"nvidia.com/gpu": own.gpus_per_node, "vpc.amazonaws.com/efa": own.efa}
        sizes = {"memory": own.memory_mib, "hugepages-2Mi": own.hugepages_mib}
        limits = {name: str(number) for name, number in devices.items() if number}
        limits |= {name: f"{number}Mi" for name, number in sizes.items() if number}
        return {"requests": limits | {"cpu": str(own.cpus_per_node)}, "limits": limits}

    def _volumes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the volumes of a pod, each with its path."""
        own = self.settings
        folders = dict.fromkeys((*own.shared, *own.mounts, *own.claims))
        for path in folders:
            claim = own.claims.get(path)
            if claim is not None:
                yield path, {"persistentVolumeClaim": {"claimName": claim}}
            else:
                yield path, {"hostPath": {"path": path}}
        if own.shm_mib is not None:
            yield _SHM, {"emptyDir": {"medium": "Memory", "sizeLimit": f"{own.shm_mib}Mi"}}
        if not any(own.scratch == path or own.scratch.startswith(f"{path}/") for path in folders):
            yield own.scratch, {"emptyDir": {}}

    def check(self, request: JobRequest, script: str) -> None:
        with self._connected() as client:
            self._apply(client, request, script, is_dry=True)

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        assert after is None  # There is no job to prefetch.
        with self._connected() as client:
            # A second request for one name changes nothing. An unknown field is an error, unlike in a POST.
            self._apply(client, request, script, is_dry=False)
        return request.name

    def _apply(self, client: Any, request: JobRequest, script: str, *, is_dry: bool) -> None:
        made = client.apply(_jobsets()(documents.read(script)), field_manager="m5ws", dry_run=is_dry)
        if made.metadata.name != request.name:
            raise EngineUnavailable(f"the answer of Kubernetes has no JobSet {request.name}", hint=_HINT)

    def state(self, name: str) -> JobState:
        from lightkube.resources.core_v1 import Pod

        with self._connected() as client:
            found = self._find(client, name)
            if found is None:
                return JobState(standing="unknown")
            status, spec = found.get("status") or {}, found["spec"]
            if ended := status.get("terminalState"):
                reasons = [each.get("message", "") for each in status.get("conditions", ()) if each["type"] == ended]
                return JobState(standing="ended", text=ended, reason="; ".join(reasons) if ended == "Failed" else "")
            if spec.get("suspend"):
                queue = (found["metadata"].get("labels") or {}).get(_QUEUE)
                waits = f"the queue {queue} of Kueue has not admitted the job" if queue else "somebody suspended it"
                return JobState(standing="queued", text="Suspended", reason=waits)
            pods = list(client.list(Pod, labels={f"{_LABELS}/jobset-name": name}))
            nodes = spec["replicatedJobs"][0]["template"]["spec"]["parallelism"]
            begun = [pod for pod in pods if pod.status is not None and pod.status.phase in ("Running", "Succeeded")]
            if len(begun) >= nodes:
                return JobState(standing="running", text="Running")
            reason = next(filter(None, map(_reason, pods)), "") or f"{len(begun)} of {nodes} pods run"
            return JobState(standing="queued", text="Pending", reason=reason)

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        raise EngineUnavailable(
            "m5ws reads no outputs of nodes from Kubernetes",
            hint='Set [run] preflight = "node": each agent then checks its node before an attempt starts.',
        )

    def cancel(self, name: str) -> None:
        with self._connected() as client:
            if self._find(client, name) is not None:
                client.delete(_jobsets(), name)

    def _find(self, client: Any, name: str) -> Mapping[str, Any] | None:
        """Return a JobSet, None if Kubernetes has none of this name."""
        from lightkube.core.exceptions import ApiError

        try:
            found: Mapping[str, Any] = client.get(_jobsets(), name)
        except ApiError as error:
            # A proxy answers 404 too, and so does a Kubernetes without JobSet.
            if error.status.reason == "NotFound":
                return None
            raise
        return found

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Yield a client. Raises EngineUnavailable, also for errors of the server in the block."""
        own = self.settings
        try:
            from httpx2 import HTTPError
            from lightkube import Client, KubeConfig
            from lightkube.core.exceptions import ConfigError
        except ImportError as error:
            hint = "Install it: `pip install 'm5ws[kubernetes]'`."
            raise EngineUnavailable("Kubernetes needs lightkube", hint=hint) from error
        try:
            with Client(KubeConfig.from_env().get(own.context), namespace=own.namespace) as client:
                yield client
        except EngineUnavailable:
            raise
        except (HTTPError, ConfigError, OSError) as error:
            raise EngineUnavailable(f"Kubernetes does not accept the request: {error}", hint=_HINT) from error
        except Exception as error:  # lightkube raises any error for an answer or a kubeconfig of another shape.
            found = f"{type(error).__name__}: {error}" if error.__context__ is None else str(error.__context__)
            raise EngineUnavailable(
                f"m5ws cannot read the kubeconfig or the answer of Kubernetes: {found}", hint=_HINT
            ) from error


@cache
def _jobsets() -> Any:
    """Return the type of JobSets, for a client."""
    from lightkube.generic_resource import create_namespaced_resource

    return create_namespaced_resource(_GROUP, _VERSION, "JobSet", "jobsets")


def _reason(pod: Any) -> str:
    """Return why a pod does not run: its place among the nodes, or its image; empty if it runs."""
    if pod.status is None:
        return ""
    for each in pod.status.conditions or ():
        if each.type == "PodScheduled" and each.status == "False":
            return each.message or each.reason or ""
    waiting = [each.state.waiting for each in pod.status.containerStatuses or () if each.state and each.state.waiting]
    return next((f"{each.reason}: {each.message}" if each.message else each.reason or "" for each in waiting), "")
