"""AWS Batch's API by moto, whose multi-node jobs are processes of this machine.

They run by the rules of the user guide
(https://docs.aws.amazon.com/batch/latest/userguide/multi-node-parallel-jobs.html): the main node starts first, it alone
decides the end of an attempt, the other nodes are stopped after it, and the first rule of the retry strategy that
matches decides about the next attempt. There are no instances, images, permissions and devices.

A file `hold-REGION` in the folder keeps jobs RUNNABLE, with its text as the reason. A file `lost` ends the next attempt
as the loss of an instance, and a file `taken` does after SIGTERM to all nodes. While a file `silent-REGION` exists, the
API of the region does not answer.

python tests/support/machine/batch_server.py PORT FOLDER NODES: NODES is a JSON object with a list for each region, of
[address, words before the command] for each of its nodes. An empty object leaves the jobs to moto, which starts a
container for each node by the socket in DOCKER_HOST.
"""

import copy
import fnmatch
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from moto.batch import models, responses, urls
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

_STOP_S = 30.0
_EXITED, _LOST = "Essential container in task exited", "Host EC2 (instance i-0) terminated."
_submitted = threading.local()
_folder = Path(sys.argv[2])
_nodes: dict[str, list[tuple[str, list[str]]]] = json.loads(sys.argv[3])


class Job(models.Job):
    """A multi-node job."""

    __module__ = models.__name__  # moto reads the name of its service there.

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.overrides: dict[str, Any] = _submitted.overrides
        self._status = "SUBMITTED"

    def advance(self) -> None:
        """Leave the status as it is: `run` decides."""

    def run(self) -> None:
        strategy: Any = self.job_definition.retry_strategy or {}
        for number in range(1, int(strategy.get("attempts", 1)) + 1):
            self.status = "RUNNABLE"
            hold = _folder / f"hold-{self.job_definition._region}"
            while hold.exists() and not self.stop:
                self.job_stopped_reason = hold.read_text() or None
                time.sleep(0.05)
            if self._is_terminated():
                break
            self.job_stopped_reason = None
            status, reason = self._attempt(number)
            self.exit_code = status
            again = next(
                (rule["action"] for rule in strategy.get("evaluateOnExit", ()) if _fits(rule, status, reason)), "RETRY"
            )
            if status == 0 or self._is_terminated() or again.upper() != "RETRY":
                break
        self.job_stopped_at, self.job_stopped = datetime.now(), True  # noqa: DTZ005
        self.status = "SUCCEEDED" if self.exit_code == 0 else "FAILED"

    def _is_terminated(self) -> bool:
        return bool(self.stop)

    def _attempt(self, number: int) -> tuple[int, str]:
        """Run one attempt, and return the status of the main node and the reason of the end."""
        properties = self.job_definition.node_properties or {}
        count, main = self.overrides.get("numNodes", properties["numNodes"]), properties["mainNode"]
        self.status, self.job_started_at = "STARTING", datetime.now()  # noqa: DTZ005
        self._start_attempt()
        order = [main, *(node for node in reversed(range(count)) if node != main)]
        started = {node: self._start(number, node, count, main) for node in order}
        self.status = "RUNNING"
        limit_s = (self.job_definition.timeout or {}).get("attemptDurationSeconds", float("inf"))
        end_s, reason = time.monotonic() + limit_s, _EXITED
        while started[main].poll() is None and not self.stop:
            time.sleep(0.05)
            if (_folder / "lost").exists():
                (_folder / "lost").unlink()
                reason = _LOST
                os.killpg(started[main].pid, signal.SIGKILL)
            if (_folder / "taken").exists():
                (_folder / "taken").unlink()
                reason = _LOST
                break
            if time.monotonic() > end_s:
                self.terminate("Job attempt duration exceeded timeout")
        # ECS stops a container by SIGTERM, and 30 seconds later by SIGKILL.
        for kind, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, 5.0)):
            _signal(started, kind, patience_s)
        self.job_stopped_at = datetime.now()  # noqa: DTZ005
        self._stop_attempt()
        status = started[main].returncode
        return status if status >= 0 else 128 - status, reason

    def _start(self, number: int, node: int, count: int, main: int) -> "subprocess.Popen[bytes]":
        container = _container(self.job_definition.node_properties or {}, self.overrides, node, count)
        nodes = _nodes[self.job_definition._region]
        variables = {each["name"]: each["value"] for each in container.get("environment", ())}
        variables |= _variables(self, number, node, count, main)
        if node != main:
            variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = nodes[main][0]
        with (_folder / f"{self.job_name}-{number}-{node}.log").open("wb") as log:
            process = subprocess.Popen(
                [*nodes[node][1], *container["command"]],
                env=os.environ | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (_folder / f"{self.job_name}-{number}-{node}.pid").write_text(str(process.pid))
        return process


class ContainerJob(models.Job):
    """moto's own multi-node job, with the overrides and the variables of nodes that moto leaves out."""

    __module__ = models.__name__

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.job_definition = copy.copy(self.job_definition)
        properties, overrides = self.job_definition.node_properties or {}, _submitted.overrides
        count = overrides.get("numNodes", properties["numNodes"])
        nodes = []
        for node in range(count):
            container = _container(properties, overrides, node, count)
            variables = _variables(self, 1, node, count, properties["mainNode"])
            own = [{"name": name, "value": value} for name, value in variables.items()]
            mounts = [{"readOnly": False, **mount} for mount in container.get("mountPoints", ())]
            changed = {"environment": [*container.get("environment", ()), *own], "mountPoints": mounts}
            nodes.append({"targetNodes": str(node), "container": container | changed})
        self.job_definition.node_properties = properties | {"numNodes": count, "nodeRangeProperties": nodes}


def _variables(job: models.Job, number: int, node: int, count: int, main: int) -> dict[str, str]:
    return {
        "AWS_BATCH_JOB_ID": job.job_id,
        "AWS_BATCH_JOB_ATTEMPT": str(number),
        "AWS_BATCH_JQ_NAME": job.job_queue.name,
        "AWS_BATCH_JOB_NUM_NODES": str(count),
        "AWS_BATCH_JOB_NODE_INDEX": str(node),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(main),
    }


def _container(properties: dict[str, Any], overrides: dict[str, Any], node: int, count: int) -> dict[str, Any]:
    """Return the container of a node, with the overrides of the job."""
    merged: dict[str, Any] = {}
    for each in properties["nodeRangeProperties"]:
        if _is_in(each["targetNodes"], node, count):
            merged |= each["container"]
    for each in overrides.get("nodePropertyOverrides", ()):
        if _is_in(each["targetNodes"], node, count):
            merged |= each["containerOverrides"]
    return merged


def _is_in(nodes: str, node: int, count: int) -> bool:
    first, separator, last = nodes.partition(":")
    return int(first or 0) <= node <= (int(last or count - 1) if separator else int(first))


def _fits(rule: dict[str, str], status: int, reason: str) -> bool:
    found = {"onExitCode": str(status), "onStatusReason": reason, "onReason": ""}
    return all(fnmatch.fnmatchcase(found[name], pattern) for name, pattern in rule.items() if name in found)


def _signal(started: "dict[int, subprocess.Popen[bytes]]", kind: signal.Signals, patience_s: float) -> None:
    end_s = time.monotonic() + patience_s
    for process in started.values():
        if process.poll() is None:
            os.killpg(process.pid, kind)
    while time.monotonic() < end_s and any(process.poll() is None for process in started.values()):
        time.sleep(0.05)


class _Response(responses.BatchResponse):
    """moto's answers, with the fields of multi-node jobs that moto leaves out."""

    def submitjob(self) -> str:
        _submitted.overrides = self._get_param("nodeOverrides") or {}
        return super().submitjob()

    def describejobdefinitions(self) -> str:
        answer = json.loads(super().describejobdefinitions())
        for each in answer["jobDefinitions"]:
            known = self.batch_backend.get_job_definition_by_arn(each["jobDefinitionArn"])
            each["nodeProperties"] = known and known.node_properties
        return json.dumps(answer)

    def getjobqueuesnapshot(self) -> str:
        queue = self.batch_backend.get_job_queue(self._get_param("jobQueue"))
        waiting = [job for job in queue.jobs if job.status == "RUNNABLE"] if queue else []
        listed = [{"jobArn": job.arn, "earliestTimeAtPosition": 0} for job in waiting[:100]]
        return json.dumps({"frontOfQueue": {"jobs": listed, "lastUpdatedAt": 0}})


def _by_region(environ: dict[str, Any], start_response: Any) -> Any:
    """Answer a request, unless the region in its signature is silent."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split("/")
    if len(scope) > 2 and (_folder / f"silent-{scope[2]}").exists():
        start_response("503 Service Unavailable", [])
        return []
    return dispatcher(environ, start_response)


if __name__ == "__main__":
    models.Job = Job if _nodes else ContainerJob  # type: ignore[misc]
    urls.url_paths = dict.fromkeys(urls.url_paths, _Response.dispatch)
    urls.url_paths["{0}/v1/getjobqueuesnapshot$"] = _Response.dispatch
    dispatcher = DomainDispatcherApplication(create_backend_app)
    run_simple("0.0.0.0", int(sys.argv[1]), _by_region, threaded=True, request_handler=MotoRequestHandler)  # noqa: S104
