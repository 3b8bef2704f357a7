"""AWS Batch, by boto3: multi-node parallel jobs, in which Batch starts one container on each node.

https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html. A job definition has all that jobs of
an image have in common, and its name is its digest, so an existing definition is used again. A job adds its nodes and
its command. Batch ends a job with its main node, which is node 0, and looks at no other node: the agents notice the
loss of a node themselves (agent/link.py).
"""

import shlex
import time
from contextlib import suppress
from typing import Any, Literal

import blake3
import msgspec

from m5ws import secret_gate
from m5ws.config.settings import BatchCluster
from m5ws.engines.interface import EngineUnavailable, JobRequest, JobState, NodeOutput, Standing
from m5ws.errors import UsageError

_HINT = "`m5ws doctor` shows the engines that answer. `region` and `queue` in [clusters] name a queue of AWS Batch."
_Status = Literal["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED"]
_STANDINGS: dict[_Status, Standing] = {
    "SUBMITTED": "queued", "PENDING": "queued", "RUNNABLE": "queued", "STARTING": "running", "RUNNING": "running",
    "SUCCEEDED": "ended", "FAILED": "ended",
}  # fmt: skip
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


_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Times before the next request for a job that Batch refused because of too many requests."""


class _Listed(msgspec.Struct, rename="camel"):
    """A job as `ListJobs` returns it."""

    job_id: str
    job_arn: str
    status: _Status
    status_reason: str | None = None


class _Throttled(EngineUnavailable):
    """Batch gets too many requests, and has done nothing."""


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
        queues = self._call("describe_job_queues", "jobQueues", list[dict[str, Any]], jobQueues=[name])
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
            return found[0].job_id
        requests = msgspec.json.decode(script)
        definition, job = requests["definition"], requests["job"]
        name, image = definition["jobDefinitionName"], self.settings.image
        named = {"jobDefinitionName": name, "status": "ACTIVE"}
        known = self._call("describe_job_definitions", "jobDefinitions", list[dict[str, Any]], **named)
        if not known:
            self._call("register_job_definition", "jobDefinitionArn", str, **definition)
        elif any(_images(each) != {image} for each in known):
            raise EngineUnavailable(
                f"the job definition {name} has another image than {image}",
                hint="Somebody changed it: deregister all its revisions, and submit again.",
            )
        for wait_s in (*_WAITS_S, None):
            try:
                # Batch makes another job of each request: a retry after a lost answer would make two.
                return str(self._call("submit_job", "jobId", str, attempts=1, **job))
            except EngineUnavailable as error:
                if isinstance(error, _Throttled) and wait_s is not None:
                    time.sleep(wait_s)
                elif found := self._find(request.name):
                    return found[0].job_id
                else:
                    raise
        raise AssertionError  # The last wait is None.

    def state(self, name: str) -> JobState:
        found = self._find(name)
        if not found:
            return JobState(standing="unknown")
        job = min(found, key=lambda each: _ALIVE.index(_STANDINGS[each.status]))
        reasons = [job.status_reason, self._place(job.job_arn) if job.status == "RUNNABLE" else None]
        return JobState(standing=_STANDINGS[job.status], text=job.status, reason="; ".join(filter(None, reasons)))

    def run(self, words: tuple[str, ...], nodes: int) -> list[NodeOutput]:
        raise EngineUnavailable(
            "m5ws reads no outputs of nodes from AWS Batch",
            hint='Set [run] preflight = "node": each agent then checks its node before an attempt starts.',
        )

    def cancel(self, name: str) -> None:
        for job in self._find(name):
            if _STANDINGS[job.status] != "ended":
                self._call("terminate_job", jobId=job.job_id, reason="cancelled by m5ws")

    def _find(self, name: str) -> list[_Listed]:
        """Return the jobs of a name, newest first: several if an answer to a submission was lost.

        Batch lists a job some seconds after its submission, and forgets it some days after its end.
        """
        filters = [{"name": "JOB_NAME", "values": [name]}]
        queue = self.settings.queue
        return list(self._call("list_jobs", "jobSummaryList", list[_Listed], jobQueue=queue, filters=filters))

    def _place(self, arn: str) -> str | None:
        """Return the place of a job in its queue, None behind the first 100 jobs, or if Batch does not answer this."""
        with suppress(EngineUnavailable):
            front = self._call("get_job_queue_snapshot", "frontOfQueue", dict[str, Any], jobQueue=self.settings.queue)
            arns = [job.get("jobArn") for job in front.get("jobs", ())]
            return f"place {arns.index(arn) + 1} in the queue" if arn in arns else None
        return None

    def _call(
        self, operation: str, name: str | None = None, kind: Any = Any, *, attempts: int = 5, **arguments: Any
    ) -> Any:
        """Return the value of a name in the answer to a request, or the values of all pages. Raises EngineUnavailable.

        An answer, or a page, without the value is an error: a job that it leaves out would pass for lost.
        """
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
            if client.can_paginate(operation):
                pages = client.get_paginator(operation).paginate(**arguments)
                return [each for page in pages for each in msgspec.convert(page.get(name), kind)]
            answer = getattr(client, operation)(**arguments)
            return None if name is None else msgspec.convert(answer.get(name), kind)
        except (BotoCoreError, ClientError) as error:
            problem = f"AWS Batch does not accept {operation}: {error}"
            answer = error.response if isinstance(error, ClientError) else {}
            code = str(answer.get("Error", {}).get("Code"))
            is_throttled = "Throttl" in code or code.startswith(("TooManyRequests", "RequestLimit", "429"))
            raise (_Throttled if is_throttled else EngineUnavailable)(problem, hint=_HINT) from error
        except Exception as error:  # botocore raises any error for an answer of another shape, or a wrong variable.
            problem = f"AWS Batch gives no answer to {operation} that m5ws can read: {type(error).__name__}: {error}"
            raise EngineUnavailable(problem, hint=_HINT) from error


def _images(definition: dict[str, Any]) -> set[str | None]:
    """Return the images of a job definition as Batch describes it."""
    ranges = definition.get("nodeProperties", {}).get("nodeRangeProperties", ())
    return {each.get("container", {}).get("image") for each in ranges}
