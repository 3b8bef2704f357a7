"""The engine for AWS Batch: its requests, and jobs on moto's API whose nodes are processes of this machine."""

import inspect
import json
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session

from m5ws.config.settings import BatchCluster
from m5ws.engines.batch import Batch
from m5ws.engines.interface import EngineUnavailable, JobRequest
from m5ws.errors import UsageError
from m5ws.secret_gate import SecretText
from tests.support.machine import batch_queue
from tests.support.machine.batch_queue import IMAGE, QUEUE, Queue
from tests.support.paths import ROOT
from tests.support.waiting import wait_for

_RUN = "7c1d0a9b8e2f"
_CLUSTER = BatchCluster(region=batch_queue.HOME, queue=QUEUE, image=IMAGE, cpus_per_node=2, memory_mib=4096, restarts=2)


def _request(nodes: int = 2, number: int = 1, agent: tuple[str, ...] = ("true",)) -> JobRequest:
    return JobRequest(name=f"m5ws-{_RUN}-{number}", run=_RUN, nodes=nodes, agent=agent)


def _rendered(cluster: BatchCluster, request: JobRequest | None = None) -> tuple[Any, Any]:
    requests = json.loads(Batch(cluster).render(request or _request()))
    return requests["definition"], requests["job"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    with batch_queue.running(tmp_path_factory.mktemp("batch")) as running:
        yield running


@pytest.fixture
def queue(server: Queue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def test_a_definition_has_the_resources_of_its_cluster() -> None:
    cluster = msgspec.structs.replace(
        _CLUSTER, gpus_per_node=8, efa=2, shm_mib=65_536, job_role="arn:aws:iam::111122223333:role/train",
        mounts=("/nvme",), instance_type="p5.48xlarge", timeout_s=86_400, tags={"team": "llm"}, shared=("/fsx",),
        restarts=9,
    )  # fmt: skip
    definition, job = _rendered(cluster, _request(nodes=16))
    assert definition["type"] == "multinode" and definition["nodeProperties"]["mainNode"] == 0
    (nodes,) = definition["nodeProperties"]["nodeRangeProperties"]
    container = nodes["container"]
    assert nodes["targetNodes"] == "0:" and nodes["instanceTypes"] == ["p5.48xlarge"]
    assert {each["type"]: each["value"] for each in container["resourceRequirements"]} == {
        "VCPU": "2", "MEMORY": "4096", "GPU": "8",
    }  # fmt: skip
    assert container["ulimits"] == [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    assert container["linuxParameters"]["sharedMemorySize"] == 65_536
    devices = [each["containerPath"] for each in container["linuxParameters"]["devices"]]
    assert devices == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
    assert [each["containerPath"] for each in container["mountPoints"]] == ["/fsx", "/nvme"]
    assert definition["timeout"] == {"attemptDurationSeconds": 86_400}
    assert definition["retryStrategy"]["attempts"] == 10 and len(definition["retryStrategy"]["evaluateOnExit"]) <= 5
    assert definition["tags"] == {"team": "llm"} and job["tags"] == {"team": "llm", "m5ws-run": _RUN}
    # All that differs between the jobs of an image is in the job.
    (override,) = job["nodeOverrides"]["nodePropertyOverrides"]
    warning = ["timeout", "--foreground", "--preserve-status", "--signal=USR2", "86100"]
    assert job["nodeOverrides"]["numNodes"] == 16 and override["containerOverrides"]["command"] == [*warning, "true"]
    assert _RUN not in json.dumps(definition)


def test_the_name_of_a_definition_changes_with_its_content_alone() -> None:
    changes: list[dict[str, Any]] = [
        {"image": IMAGE.replace("a" * 64, "b" * 64)}, {"efa": 1}, {"shm_mib": 64}, {"restarts": 3}, {"timeout_s": 900},
        {"tags": {"team": "llm"}}, {"memory_mib": 8192}, {"shared": ("/fsx",)},
    ]  # fmt: skip
    names = [_rendered(msgspec.structs.replace(_CLUSTER, **change))[1]["jobDefinition"] for change in ({}, *changes)]
    assert len({*names}) == len(changes) + 1
    same = msgspec.structs.replace(_CLUSTER, setup=("ulimit -c 0",))
    assert _rendered(same, _request(nodes=4, number=2))[1]["jobDefinition"] == names[0]


@pytest.mark.parametrize(
    "change",
    [
        {"setup": ("export HF_TOKEN=hf_" + "a1B2c3D4" * 4 + "ab",)},
        {"tags": {"password": "aB3dE6gH9jK2mN5pQ8sT"}},
        {"setup": ("export AWS_SECRET_ACCESS_KEY=" + "aB3dE6gH9j" * 4,)},
    ],
)
def test_a_secret_in_a_request_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SecretText, match="looks like a secret"):
        Batch(msgspec.structs.replace(_CLUSTER, **change)).render(_request())


def test_the_policy_of_submitters_allows_the_requests_of_the_engine_alone() -> None:
    policy = json.loads((ROOT / "docs" / "reference" / "policies" / "batch-submitter.json").read_text())
    lists = [actions if isinstance(actions := each["Action"], list) else [actions] for each in policy["Statement"]]
    calls = set(re.findall(r'self\._call\("(\w+)"', inspect.getsource(Batch)))
    assert len(calls) == 7
    requests = {f"batch:{''.join(word.title() for word in name.split('_'))}" for name in calls}
    # Definitions and jobs have tags, and their containers have a role.
    assert {action for actions in lists for action in actions} == {*requests, "batch:TagResource", "iam:PassRole"}


def _submit(tmp_path: Path, number: int, statuses: str, cluster: BatchCluster = _CLUSTER) -> str:
    """Submit a job whose nodes note their variables, and end with the next of the statuses of their node."""
    agent = tmp_path / "agent.sh"
    agent.write_text(
        f"cd {tmp_path}; node=$AWS_BATCH_JOB_NODE_INDEX\n"
        'echo "$AWS_BATCH_JOB_ATTEMPT $node $AWS_BATCH_JOB_NUM_NODES" >> starts\n'
        'set -- $(sed -n "$((node + 1))p" statuses); shift $((AWS_BATCH_JOB_ATTEMPT - 1))\n'
        "[ $1 = never ] && exec sleep 60\nexit $1\n"
    )
    (tmp_path / "statuses").write_text(statuses)
    request = _request(number=number, agent=("bash", str(agent)))
    engine = Batch(cluster)
    script = engine.render(request)
    engine.check(request, script)
    return engine.submit(request, script)


@pytest.mark.parametrize(
    ("number", "statuses", "attempts", "status"),
    [
        (10, "0\nnever", 1, "SUCCEEDED"),
        (11, "1\n0", 1, "FAILED"),
        (12, "130\n0", 1, "FAILED"),
        (13, "75 137 0\nnever never never", 3, "SUCCEEDED"),
        (14, "75 75 75\n0 0 0", 3, "FAILED"),
        (15, "0\n3", 1, "SUCCEEDED"),
    ],
)
def test_a_job_starts_again_where_the_agents_ask_for_it(
    tmp_path: Path, queue: Queue, number: int, statuses: str, attempts: int, status: str
) -> None:
    job = _submit(tmp_path, number, statuses)
    engine = Batch(_CLUSTER)
    wait_for(lambda: engine.state(f"m5ws-{_RUN}-{number}").standing == "ended")
    assert queue.describe(job)["status"] == status and len(queue.describe(job)["attempts"]) == attempts
    starts = (tmp_path / "starts").read_text().splitlines()
    # A child may be stopped before it has noted anything.
    expected = [f"{attempt} 0 2" for attempt in range(1, attempts + 1)]
    assert [start for start in starts if start.split()[1] == "0"] == expected and len({*starts}) == len(starts)


def test_a_lost_instance_starts_a_job_again(tmp_path: Path, queue: Queue) -> None:
    job = _submit(tmp_path, 20, "never 0\nnever never")
    wait_for(lambda: queue.describe(job)["status"] == "RUNNING")
    queue.lose_an_instance()
    wait_for(lambda: queue.describe(job)["status"] == "SUCCEEDED")
    assert len(queue.describe(job)["attempts"]) == 2


def test_a_state_has_the_reason_of_the_queue_and_a_cancel_removes_the_job(tmp_path: Path, queue: Queue) -> None:
    engine = Batch(_CLUSTER)
    queue.hold("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no instance of this type")
    try:
        jobs = [_submit(tmp_path, number, "0\n0") for number in (30, 31)]
        wait_for(lambda: all(queue.describe(job).get("statusReason") for job in jobs))
        states = [engine.state(f"m5ws-{_RUN}-{number}") for number in (30, 31)]
        assert {(state.standing, state.text) for state in states} == {("queued", "RUNNABLE")}
        capacity = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no instance of this type"
        assert [state.reason for state in states] == [f"{capacity}; place {place} in the queue" for place in (1, 2)]
        engine.cancel(f"m5ws-{_RUN}-30")
        wait_for(lambda: engine.state(f"m5ws-{_RUN}-30").standing == "ended")
        assert engine.state(f"m5ws-{_RUN}-31").reason.endswith("place 1 in the queue")
    finally:
        queue.release()
    wait_for(lambda: engine.state(f"m5ws-{_RUN}-31").standing == "ended")
    assert not queue.describe(jobs[0])["attempts"] and queue.describe(jobs[0])["statusReason"] == "cancelled by m5ws"
    assert engine.state("m5ws-unknown").standing == "unknown"
    engine.cancel("m5ws-unknown")


def test_jobs_of_an_image_share_a_definition_and_another_image_under_its_name_is_refused(
    tmp_path: Path, queue: Queue
) -> None:
    cluster = msgspec.structs.replace(_CLUSTER, shm_mib=128)
    definition, _ = _rendered(cluster)
    name = definition["jobDefinitionName"]
    for number in (40, 41):
        _submit(tmp_path, number, "0\n0", cluster)
    known = queue.client().describe_job_definitions(jobDefinitionName=name)["jobDefinitions"]
    assert [each["revision"] for each in known] == [1]
    definition["nodeProperties"]["nodeRangeProperties"][0]["container"]["image"] = "other:latest"
    queue.client().register_job_definition(**definition)
    with pytest.raises(EngineUnavailable, match="has another image"):
        _submit(tmp_path, 42, "0\n0", cluster)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_lost_answer_to_a_submission_leaves_one_job(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    number, send = 50 + is_listed, URLLib3Session.send

    def lose(session: URLLib3Session, request: Any) -> Any:
        answer = send(session, request)
        if request.url.endswith("submitjob"):
            raise ReadTimeoutError(endpoint_url=request.url)
        if request.url.endswith("listjobs") and not is_listed:
            # Batch lists a job some time after its submission.
            answer._content = b'{"jobSummaryList": []}'
        return answer

    queue.hold("")
    engine, name = Batch(_CLUSTER), f"m5ws-{_RUN}-{number}"
    try:
        with monkeypatch.context() as patch:
            patch.setattr(URLLib3Session, "send", lose)
            if is_listed:
                _submit(tmp_path, number, "0\n0")
            else:
                with pytest.raises(EngineUnavailable, match="submit_job"):
                    _submit(tmp_path, number, "0\n0")
        assert len(_listed(queue, name)) == 1
        # A second submission of the name, such as by `m5ws wait`, finds the job.
        assert _submit(tmp_path, number, "0\n0") == _listed(queue, name)[0]["jobId"] and len(_listed(queue, name)) == 1
        engine.cancel(name)
        wait_for(lambda: engine.state(name).standing == "ended")
    finally:
        queue.release()


def test_two_jobs_of_a_name_are_alive_until_both_have_ended(tmp_path: Path, queue: Queue) -> None:
    engine, name = Batch(_CLUSTER), f"m5ws-{_RUN}-60"
    queue.hold("")
    try:
        first = _submit(tmp_path, 60, "0\n0")
        job = json.loads(engine.render(_request(number=60)))["job"]
        second = queue.client().submit_job(**job)["jobId"]
        assert {each["jobId"] for each in _listed(queue, name)} == {first, second}
        for each in (second, first):
            assert engine.state(name).standing == "queued"
            queue.client().terminate_job(jobId=each, reason="by somebody")
            wait_for(partial(_has_failed, queue, each))
        assert engine.state(name).standing == "ended"
        twins = [queue.client().submit_job(**job)["jobId"] for _ in range(2)]
        engine.cancel(name)
        wait_for(lambda: all(_has_failed(queue, each) for each in twins))
    finally:
        queue.release()


def _has_failed(queue: Queue, job: str) -> bool:
    return bool(queue.describe(job)["status"] == "FAILED")


def _listed(queue: Queue, name: str) -> list[Any]:
    filters = [{"name": "JOB_NAME", "values": [name]}]
    return list(queue.client().list_jobs(jobQueue=QUEUE, filters=filters)["jobSummaryList"])


def test_a_command_above_the_limit_of_the_containers_is_refused_before_a_submission() -> None:
    for size, is_refused in ((8000, False), (8192, True)):
        cluster = msgspec.structs.replace(_CLUSTER, setup=("x" * size,))
        with pytest.raises(UsageError, match="8,192 characters") if is_refused else nullcontext():
            Batch(cluster).render(_request())


def test_a_queue_that_takes_no_jobs_is_named_before_a_submission(queue: Queue) -> None:
    absent = Batch(msgspec.structs.replace(_CLUSTER, queue="absent"))
    with pytest.raises(EngineUnavailable, match="no queue absent"):
        absent.check(_request(), absent.render(_request()))
    queue.client().update_job_queue(jobQueue=QUEUE, state="DISABLED")
    try:
        with pytest.raises(EngineUnavailable, match="takes no jobs: DISABLED"):
            Batch(_CLUSTER).check(_request(), "")
    finally:
        queue.client().update_job_queue(jobQueue=QUEUE, state="ENABLED")


def test_an_error_of_batch_or_of_the_connection_is_unavailable(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnavailable, match="does not accept list_jobs"):
        Batch(msgspec.structs.replace(_CLUSTER, queue="absent")).state("m5ws-unknown")
    monkeypatch.setenv("AWS_ENDPOINT_URL_BATCH", "http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable, match="describe_job_queues"):
        Batch(_CLUSTER).check(_request(), "")


_PAGE = {"jobId": "1", "jobArn": "arn:1", "jobName": "n", "status": "RUNNING"}
_SHAPES: list[Any] = [
    None, [], "text", {}, {"jobSummaryList": None, "jobQueues": None, "jobDefinitions": None, "jobId": None},
    {"jobSummaryList": [{}], "jobQueues": [None], "jobDefinitions": [None], "jobId": {}},
    {"jobSummaryList": [_PAGE | {"status": "PAUSED"}], "jobQueues": 5, "jobDefinitions": "x"},
    *({"jobSummaryList": [{key: value for key, value in _PAGE.items() if key != name}]} for name in
      ("jobId", "jobArn", "status")),
]  # fmt: skip


def _answering(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, Any]) -> list[str]:
    """Let Batch give these answers to the next requests, the last of them to all that follow. Return the requests."""
    requests: list[str] = []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")

    def send(_: URLLib3Session, request: Any) -> AWSResponse:
        code, body = answers[min(len(requests), len(answers) - 1)]
        requests.append(request.url.rpartition("/")[2])
        answer = AWSResponse(request.url, code, {"content-type": "application/json"}, None)
        answer._content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return answer

    monkeypatch.setattr(URLLib3Session, "send", send)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return requests


@pytest.mark.parametrize("code", [200, 302, 400, 403, 404, 429, 500, 503])
def test_an_answer_of_another_shape_is_unavailable_and_no_job_passes_for_unknown(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    engine, request = Batch(_CLUSTER), _request()
    script = engine.render(request)
    for body in (*_SHAPES, b"", b"<html>", b"\xff"):
        for method, given in (("check", (request, script)), ("submit", (request, script)), ("state", ("n",))):
            _answering(monkeypatch, (code, body))
            with pytest.raises(EngineUnavailable) as caught:
                getattr(engine, method)(*given)
            assert caught.value.hint and "\n" not in str(caught.value), (method, body)


def test_all_pages_of_a_list_are_read_and_a_broken_page_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[tuple[int, Any]] = [(200, {"jobSummaryList": [], "nextToken": str(number)}) for number in range(3)]
    last = (200, {"jobSummaryList": [_PAGE]})
    _answering(monkeypatch, *pages, last)
    assert Batch(_CLUSTER).state("n").standing == "running"
    throttled = (429, {"__type": "TooManyRequestsException"})
    # One refusal is repeated, and a page that stays away is not left out.
    _answering(monkeypatch, *pages, throttled, last)
    assert Batch(_CLUSTER).state("n").standing == "running"
    for broken in (throttled, (200, {}), (200, {"nextToken": "x"}), (403, {"__type": "AccessDeniedException"})):
        _answering(monkeypatch, *pages, broken)
        with pytest.raises(EngineUnavailable, match="list_jobs"):
            Batch(_CLUSTER).state("n")


_REFUSED = {"ThrottlingException": 400, "TooManyRequestsException": 429, "RequestLimitExceeded": 503}


@pytest.mark.parametrize("refusals", [0, 1, 5, 6])
@pytest.mark.parametrize("word", _REFUSED)
def test_a_submission_is_repeated_after_a_refusal_of_too_many_requests_alone(
    monkeypatch: pytest.MonkeyPatch, refusals: int, word: str
) -> None:
    engine, request = Batch(_CLUSTER), _request()
    known = [(200, {"jobSummaryList": []}), (200, {"jobDefinitions": []}), (200, {"jobDefinitionArn": "arn:1"})]
    refused = (_REFUSED[word], {"__type": word, "message": "Rate exceeded"})
    sent = _answering(monkeypatch, *known, *[refused] * refusals, (200, {"jobId": "1"}), (200, {"jobSummaryList": []}))
    if refusals < 6:
        assert engine.submit(request, engine.render(request)) == "1"
    else:
        sent = _answering(monkeypatch, *known, *[refused] * refusals, known[0])
        with pytest.raises(EngineUnavailable, match=word):
            engine.submit(request, engine.render(request))
    assert sent.count("submitjob") == min(refusals + 1, 6)
    # Of any other end of a request, nobody knows if it made a job.
    for other in ((500, b""), (503, b"<html>"), (200, {}), (403, {"__type": "AccessDeniedException"})):
        sent = _answering(monkeypatch, *known, other, known[0])
        with pytest.raises(EngineUnavailable, match="submit_job"):
            engine.submit(request, engine.render(request))
        assert sent.count("submitjob") == 1


@pytest.mark.parametrize("image", [IMAGE, "other:latest", None])
def test_each_range_of_nodes_of_a_known_definition_has_the_image(
    monkeypatch: pytest.MonkeyPatch, image: str | None
) -> None:
    ranges = [{"targetNodes": "0", "container": {"image": IMAGE}}, {"targetNodes": "1:", "container": {"image": image}}]
    empty: dict[str, Any] = {"jobSummaryList": []}
    first = {"jobDefinitions": [], "nextToken": "more"}
    known = {"jobDefinitions": [{"nodeProperties": {"nodeRangeProperties": ranges}}]}
    sent = _answering(monkeypatch, (200, empty), (200, first), (200, known), (200, {"jobId": "1"}))
    engine, request = Batch(_CLUSTER), _request()
    with nullcontext() if image == IMAGE else pytest.raises(EngineUnavailable, match="has another image"):
        engine.submit(request, engine.render(request))
    assert ("submitjob" in sent) == (image == IMAGE) and "registerjobdefinition" not in sent


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_BATCH", "AWS_MAX_ATTEMPTS", "AWS_PROFILE", "AWS_CONFIG_FILE"])
def test_a_wrong_variable_of_aws_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    (tmp_path / "odd").write_text("[default\n")
    monkeypatch.setenv(variable, str(tmp_path / "odd") if variable.endswith("FILE") else "odd")
    with pytest.raises(EngineUnavailable) as caught:
        Batch(_CLUSTER).state("n")
    assert caught.value.hint
