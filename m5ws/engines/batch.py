"""AWS Batch, by boto3: multi-node parallel jobs, in which Batch starts one container on each node.

https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html. A job definition has all that jobs of
an image have in common, and its name is its digest, so an existing definition is used again. A job adds its nodes and
its command. Batch ends a job with its main node, which is node 0, and looks at no other node: the agents notice the
loss of a node themselves (agent/link.py).
"""

import shlex
from contextlib import suppress
from typing import Any

import blake3
import msgspec

from m5ws import secret_gate
from m5ws.config.settings import BatchCluster
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput, Standing
from m5ws.errors import UsageError

_HINT = "`m5ws doctor` shows the engines that answer. `region` and `queue` in [clusters] name a queue of AWS Batch."
_STANDINGS: dict[str, Standing] = {
    **dict.fromkeys(("SUBMITTED", "PENDING", "RUNNABLE"), "queued"),
    **dict.fromkeys(("STARTING", "RUNNING"), "running"),
    **dict.fromkeys(("SUCCEEDED", "FAILED"), "ended"),
}
_ALIVE: tuple[Standing, ...] = ("running", "queued", "ended")
_OVERRIDE_CHARACTERS = 8192
"""The limit of ECS for all that a job changes in a container, also of the variables that Batch adds."""
_AGAIN = (
    {"onStatusReason": "Host EC2*", "action": "RETRY"},
    {"onExitCode": "75", "action": "RETRY"},
    {"onExitCode": "137", "action": "RETRY"},
    {"onReason": "*", "action": "EXIT"},
)
"""The first rule that matches decides: the instance was lost, the agents ask for the next start, an agent was killed.
"""


class Batch(msgspec.Struct, frozen=True):
    """`Engine` with the settings of a queue."""

    settings: BatchCluster

    def render(self, request: JobRequest) -> str:
        """As `Engine.render`: JSON with the two requests to Batch. Raises SecretText, UsageError."""
        own = self.settings
        # Users who may look at the queue can read both requests.
        secret_gate.refuse(own, "the cluster")
        secret_gate.refuse({"agent": request.agent}, "the job")
        definition = self._definition()
        digest = blake3.blake3(msgspec.json.encode(definition, order="deterministic")).hexdigest()
        command = {"targetNodes": "0:", "containerOverrides": {"command": self._command(request.agent)}}
        if len(msgspec.json.encode(command["containerOverrides"])) > _OVERRIDE_CHARACTERS:
            raise UsageError(
                f"the command of a node is longer than {_OVERRIDE_CHARACTERS:,} characters, the limit of AWS Batch",
                hint="Move lines of `setup` in [clusters] into a script of the image.",
            )
        job = {
            "jobName": request.name,
            "jobQueue": own.queue,
            "jobDefinition": f"m5ws-{digest[:32]}",
            "nodeOverrides": {"numNodes": request.nodes, "nodePropertyOverrides": [command]},
            "propagateTags": True,
            "tags": own.tags | {"m5ws-run": request.run},
        }
        requests = {"definition": {"jobDefinitionName": job["jobDefinition"]} | definition, "job": job}
        return msgspec.json.format(msgspec.json.encode(requests)).decode()

    def _definition(self) -> dict[str, Any]:
        """Return the job definition without its name."""
        own = self.settings
        requirements = {"VCPU": own.cpus_per_node, "MEMORY": own.memory_mib, "GPU": own.gpus_per_node}
        places = [f"/dev/infiniband/uverbs{number}" for number in range(own.efa)]
        permissions = ["READ", "WRITE", "MKNOD"]
        folders = {f"folder-{number}": path for number, path in enumerate(dict.fromkeys((*own.shared, *own.mounts)))}
        linux: dict[str, Any] = {
            "initProcessEnabled": True,
            "devices": [{"hostPath": path, "containerPath": path, "permissions": permissions} for path in places],
        }
        if own.shm_mib is not None:
            linux["sharedMemorySize"] = own.shm_mib
        container: dict[str, Any] = {
            "image": own.image,
            "environment": [{"name": "M5WS_CONTAINER_IMAGE", "value": own.image}],
            "resourceRequirements": [
                {"type": kind, "value": str(value)} for kind, value in requirements.items() if value
            ],
            # EFA registers memory that must not be paged out.
            "ulimits": [{"name": "memlock", "softLimit": -1, "hardLimit": -1}],
            "linuxParameters": linux,
            "volumes": [{"name": name, "host": {"sourcePath": path}} for name, path in folders.items()],
            "mountPoints": [{"sourceVolume": name, "containerPath": path} for name, path in folders.items()],
        }
        if own.job_role is not None:
            container["jobRoleArn"] = own.job_role
        # A job overrides the number of nodes, because the range of nodes has no end.
        nodes: dict[str, Any] = {"targetNodes": "0:", "container": container}
        if own.instance_type is not None:
            nodes["instanceTypes"] = [own.instance_type]
        definition: dict[str, Any] = {
            "type": "multinode",
            "nodeProperties": {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [nodes]},
            "retryStrategy": {"attempts": own.restarts + 1, "evaluateOnExit": [*_AGAIN]},
            "propagateTags": True,
            "tags": own.tags,
        }
        if own.timeout_s is not None:
            definition["timeout"] = {"attemptDurationSeconds": own.timeout_s}
        return definition

    def _command(self, agent: tuple[str, ...]) -> list[str]:
        """Return the command of a container. Batch gives no warning before a time limit, so `timeout` does."""
        own = self.settings
        if own.timeout_s is not None:
            warning = ("timeout", "--foreground", "--preserve-status", "--signal=USR2", str(own.timeout_s - own.warn_s))
            agent = (*warning, *agent)
        return ["bash", "-c", "\n".join((*own.setup, f"exec {shlex.join(agent)}"))] if own.setup else [*agent]

    def check(self, request: JobRequest, script: str) -> None:
        name = self.settings.queue
        queues = self._call("describe_job_queues", jobQueues=[name])["jobQueues"]
        if not queues:
            raise EngineUnavailable(f"AWS Batch has no queue {name}", hint=_HINT)
        state, status = queues[0].get("state"), queues[0].get("status")
        if (state, status) != ("ENABLED", "VALID"):
            reason = queues[0].get("statusReason") or "AWS Batch gives no reason"
            raise EngineUnavailable(f"the queue {name} takes no jobs: {state}, {status} ({reason})", hint=_HINT)

    def submit(self, request: JobRequest, script: str, after: str | None = None) -> str:
        assert after is None  # A dependency that fails would end the job.
        # The job of an earlier submission whose answer was lost, or whose submitter was killed.
        if found := self._find(request.name):
            return str(found[0]["jobId"])
        requests = msgspec.json.decode(script)
        definition, job = requests["definition"], requests["job"]
        name, image = definition["jobDefinitionName"], self.settings.image
        known = self._call("describe_job_definitions", jobDefinitionName=name, status="ACTIVE")["jobDefinitions"]
        if not known:
            self._call("register_job_definition", **definition)
        elif any(_image(each) != image for each in known):
            raise EngineUnavailable(
                f"the job definition {name} has another image than {image}",
                hint="Somebody changed it: deregister all its revisions, and submit again.",
            )
        try:
            # Batch makes another job of each request: a retry after a lost answer would make two.
            return str(self._call("submit_job", attempts=1, **job)["jobId"])
        except EngineUnavailable:
            if found := self._find(request.name):
                return str(found[0]["jobId"])
            raise

    def state(self, name: str) -> JobState:
        found = self._find(name)
        if not found:
            return JobState(standing="unknown")
        job = min(found, key=lambda each: _ALIVE.index(_STANDINGS[each["status"]]))
        status = job["status"]
        reasons = [job.get("statusReason"), self._place(job["jobArn"]) if status == "RUNNABLE" else None]
        return JobState(standing=_STANDINGS[status], text=status, reason="; ".join(filter(None, reasons)))

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        raise EngineUnavailable(
            "m5ws reads no outputs of nodes from AWS Batch",
            hint='Set [run] preflight = "node": each agent then checks its node before an attempt starts.',
        )

    def cancel(self, name: str) -> None:
        for job in self._find(name):
            if _STANDINGS[job["status"]] != "ended":
                self._call("terminate_job", jobId=job["jobId"], reason="cancelled by m5ws")

    def _find(self, name: str) -> list[dict[str, Any]]:
        """Return the jobs of a name, newest first: several if an answer to a submission was lost.

        Batch lists a job some seconds after its submission, and forgets it some days after its end.
        """
        filters = [{"name": "JOB_NAME", "values": [name]}]
        pages = self._call("list_jobs", paginated=True, jobQueue=self.settings.queue, filters=filters)
        return list(pages["jobSummaryList"])

    def _place(self, arn: str) -> str | None:
        """Return the place of a job in its queue, None behind the first 100 jobs, or if Batch does not answer this."""
        with suppress(EngineUnavailable):
            front = self._call("get_job_queue_snapshot", jobQueue=self.settings.queue).get("frontOfQueue", {})
            arns = [job["jobArn"] for job in front.get("jobs", ())]
            return f"place {arns.index(arn) + 1} in the queue" if arn in arns else None
        return None

    def _call(self, operation: str, *, paginated: bool = False, attempts: int = 5, **arguments: Any) -> Any:
        """Return the answer to a request. Raises EngineUnavailable."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise EngineUnavailable("AWS Batch needs boto3", hint="Install it: `pip install 'm5ws[s3]'`.") from error
        try:
            retries: Any = {"mode": "standard", "total_max_attempts": attempts}
            config = Config(connect_timeout=10, read_timeout=60, retries=retries)
            client = boto3.client("batch", region_name=self.settings.region, config=config)
            if paginated:
                return client.get_paginator(operation).paginate(**arguments).build_full_result()
            return getattr(client, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise EngineUnavailable(f"AWS Batch does not accept {operation}: {error}", hint=_HINT) from error


def _image(definition: dict[str, Any]) -> str | None:
    """Return the image of a job definition as Batch describes it."""
    ranges = definition.get("nodeProperties", {}).get("nodeRangeProperties", ())
    return next((each["container"]["image"] for each in ranges), None)
