"""The engine for Kubernetes: its manifests against the schema of JobSet, and its requests to a server of the tests."""

import copy
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.agent import places
from m5ws.config.settings import KubernetesCluster
from m5ws.engines import documents
from m5ws.engines.interface import EngineUnavailable, JobRequest
from m5ws.engines.kubernetes import Kubernetes
from m5ws.secret_gate import SecretText
from tests.support.kubernetes import api_server, controller, jobset_schema
from tests.support.kubernetes.api_server import Server
from tests.support.kubernetes.controller import Controller
from tests.support.paths import ROOT
from tests.support.waiting import wait_for

_RUN = "7c1d0a9b8e2f"
_IMAGE = f"registry.example.org/train@sha256:{'a' * 64}"
_CLUSTER = KubernetesCluster(image=_IMAGE, cpus_per_node=2, memory_mib=4096, restarts=2)
_FULL = msgspec.structs.replace(
    _CLUSTER, gpus_per_node=8, efa=32, hugepages_mib=5120, shm_mib=65_536, queue="team", service_account="train",
    shared=("/fsx",), claims={"/fsx": "fsx"}, mounts=("/nvme",), secrets=("bucket",), setup=("ulimit -c 0",),
    node_selector={"node.kubernetes.io/instance-type": "p5.48xlarge"}, tolerations=("nvidia.com/gpu",),
    labels={"team": "llm"},
)  # fmt: skip
_FREE = {"labels", "annotations", "nodeSelector", "limits", "requests"}
"""Maps whose keys are free."""


def _request(number: int = 1, nodes: int = 2, agent: tuple[str, ...] = ("true",)) -> JobRequest:
    return JobRequest(name=f"m5ws-{_RUN}-{number:08x}", run=_RUN, nodes=nodes, agent=agent)


def _manifest(cluster: KubernetesCluster = _FULL, request: JobRequest | None = None) -> Any:
    return yaml.safe_load(Kubernetes(cluster).render(request or _request()))


def _pod(manifest: Any) -> Any:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@given(
    st.recursive(
        st.text() | st.sampled_from(["yes", "1e3", "0o7", "12:30:00", "~", "a\n", "a: b\n", " a\n\n", "#\n"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(deadline=None, max_examples=60)
def test_readers_of_both_versions_of_yaml_read_the_written_document(value: object) -> None:
    text = documents.write({"key": value})
    assert documents.read(text) == {"key": value}
    # PyYAML, which reads YAML 1.1, knows fewer characters.
    if text.isascii():
        assert yaml.safe_load(text) == {"key": value}


@pytest.mark.parametrize("cluster", [_CLUSTER, _FULL])
@pytest.mark.parametrize("nodes", [1, 1024])
def test_a_manifest_has_no_problem_by_the_schema_of_jobset(cluster: KubernetesCluster, nodes: int) -> None:
    manifest = _manifest(cluster, _request(nodes=nodes))
    assert jobset_schema.problems(manifest) == []
    # Names of pods, https://jobset.sigs.k8s.io/docs/concepts: the last part is random.
    assert len(f"{manifest['metadata']['name']}-node-0-{nodes - 1}-abcde") <= 63
    again = copy.deepcopy(manifest)
    again["spec"]["failurePolicy"]["maxRestarts"] += 1
    assert jobset_schema.problems(again, manifest) == ["/spec/failurePolicy: Value is immutable"]


def test_a_broken_rule_of_jobset_is_found() -> None:
    wrong = _manifest()
    wrong["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    wrong["spec"]["replicatedJobs"][0]["dependsOn"] = [{"name": "node", "status": "Ready"}]
    assert jobset_schema.problems(wrong) == ["/spec: StartupPolicy and DependsOn APIs are mutually exclusive"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field of a manifest, and of each element of a list."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _with_fault(manifest: Any, path: tuple[Any, ...], fault: str) -> Any:
    """Return a manifest whose field at a path has another name or type."""
    changed = copy.deepcopy(manifest)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if fault == "renamed":
        holder[f"{path[-1]}x"] = holder.pop(path[-1])
    else:
        holder[path[-1]] = [holder[path[-1]]] if isinstance(holder[path[-1]], dict) else {"x": holder[path[-1]]}
    return changed


def test_each_field_of_another_name_or_type_is_found() -> None:
    manifest = _manifest()
    paths = [*_places(manifest)]
    named = [path for path in paths if isinstance(path[-1], str) and path[-2:-1] not in [(name,) for name in _FREE]]
    planted = [(path, "renamed") for path in named] + [(path, "retyped") for path in paths]
    missed = [each for each in planted if not jobset_schema.problems(_with_fault(manifest, *each))]
    print(f"{len(planted) - len(missed)} of {len(planted)} planted faults found")
    assert len(named) > 80 and missed == []


def test_a_pod_has_the_resources_of_its_cluster() -> None:
    manifest = _manifest()
    pod = _pod(manifest)
    (container,) = pod["containers"]
    assert manifest["metadata"]["labels"] == {
        "team": "llm", "m5ws-run": _RUN, "kueue.x-k8s.io/queue-name": "team",
    }  # fmt: skip
    limits = {
        "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "memory": "4096Mi", "hugepages-2Mi": "5120Mi",
    }  # fmt: skip
    assert container["resources"] == {"limits": limits, "requests": limits | {"cpu": "2"}}
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounted = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert mounted["/fsx"]["persistentVolumeClaim"] == {"claimName": "fsx"}
    assert mounted["/nvme"]["hostPath"] == {"path": "/nvme"} and mounted["/m5ws"]["emptyDir"] == {}
    assert mounted["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "65536Mi"}
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert pod["terminationGracePeriodSeconds"] == 150 and pod["serviceAccountName"] == "train"
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 2
    on_disk = _pod(_manifest(msgspec.structs.replace(_FULL, scratch="/nvme/m5ws")))
    assert {each["mountPath"] for each in on_disk["containers"][0]["volumeMounts"]} == {"/fsx", "/nvme", "/dev/shm"}


def test_an_agent_reads_its_place_from_the_variables_of_its_manifest() -> None:
    (container,) = _pod(_manifest(request=_request(nodes=3)))["containers"]
    labels = {"jobset.sigs.k8s.io/jobset-uid": "u-1", "jobset.sigs.k8s.io/restart-attempt": "2"}
    place = places.read(controller._variables(container["env"], labels) | {"JOB_COMPLETION_INDEX": "1"})
    name = _request().name
    assert (place.node, place.nodes, place.job) == (1, 3, "kubernetes:u-1.2")
    assert (place.master, place.port) == (f"{name}-node-0-0.{name}", 29_500)


@pytest.mark.parametrize(
    "change",
    [
        {"setup": ("export HF_TOKEN=hf_" + "a1B2c3D4" * 4 + "ab",)},
        {"labels": {"password": "aB3dE6gH9jK2mN5pQ8sT"}},
        {"node_selector": {"token": "aB3dE6gH9jK2mN5pQ8sT"}},
    ],
)
def test_a_secret_in_a_manifest_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SecretText, match="looks like a secret"):
        Kubernetes(msgspec.structs.replace(_CLUSTER, **change)).render(_request())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server.running(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture
def server(started: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("KUBECONFIG", str(started.kubeconfig))
    started.failures.clear()
    started.jobsets.clear()
    started.requests.clear()
    started.allowed = started.foreign = None
    return started


def _submit(engine: Kubernetes, request: JobRequest) -> str:
    script = engine.render(request)
    engine.check(request, script)
    return engine.submit(request, script)


def test_a_check_creates_nothing_and_a_submission_creates_one_jobset(server: Server) -> None:
    engine, request = Kubernetes(_FULL), _request()
    script = engine.render(request)
    engine.check(request, script)
    assert not server.jobsets and engine.state(request.name).standing == "unknown"
    # An answer that was lost: the second request changes nothing.
    for _ in range(2):
        assert engine.submit(request, script) == request.name
    assert [*server.jobsets] == [request.name]
    engine.cancel(request.name)
    engine.cancel(request.name)
    assert not server.jobsets


def test_a_server_refuses_an_unknown_field_before_a_submission(server: Server) -> None:
    engine, request = Kubernetes(_FULL), _request()
    script = engine.render(request).replace("envFrom:", "envFroms:")
    with pytest.raises(EngineUnavailable, match="envFroms"):
        engine.check(request, script)


@pytest.mark.parametrize("code", [0, 401, 403, 409, 422, 429, 500, 503, 504])
@pytest.mark.parametrize("method", ["check", "submit", "state", "cancel"])
def test_each_answer_of_a_server_that_is_no_success_is_an_error(server: Server, code: int, method: str) -> None:
    engine, request = Kubernetes(_CLUSTER), _request()
    script = engine.render(request)
    server.failures.append(code)
    given = (request, script) if method in ("check", "submit") else (request.name,)
    with pytest.raises(EngineUnavailable, match=f"answers {code}" if code else "request") as caught:
        getattr(engine, method)(*given)
    assert caught.value.hint and not server.failures and not server.jobsets


_BODIES = (b"", b"{}", b"[]", b"<html>")


@pytest.mark.parametrize("kind", ["application/json", "text/html", None])
@pytest.mark.parametrize("code", [200, 404, 503])
def test_an_answer_of_something_before_the_server_is_an_error_and_no_job_passes_for_deleted(
    server: Server, code: int, kind: str | None
) -> None:
    engine, request = Kubernetes(_CLUSTER), _request()
    script = engine.render(request)
    for body in _BODIES:
        server.foreign = (code, kind, body)
        for ask in (partial(engine.submit, request, script), partial(engine.state, request.name)):
            with pytest.raises(EngineUnavailable) as caught:
                ask()
            assert caught.value.hint and (code == 200 or kind == "application/json" or str(code) in str(caught.value))


@pytest.mark.parametrize("text", ["", "{{", "[]", "null", "contexts: null", "current-context: lab\ncontexts: [5]"])
def test_a_kubeconfig_of_another_shape_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(EngineUnavailable) as caught:
        Kubernetes(_CLUSTER).state("x")
    assert caught.value.hint


@pytest.mark.parametrize("change", [{"replicatedJobs": []}, {"replicatedJobs": [{"template": {"spec": {}}}]}])
def test_a_jobset_of_another_shape_under_the_name_is_an_error(server: Server, change: dict[str, Any]) -> None:
    engine, request = Kubernetes(_CLUSTER), _request()
    _submit(engine, request)
    server.jobsets[request.name]["spec"] |= change
    with pytest.raises(EngineUnavailable):
        engine.state(request.name)


def test_a_kubeconfig_without_the_context_is_an_error(server: Server) -> None:
    with pytest.raises(EngineUnavailable, match="Context 'other' not found"):
        Kubernetes(msgspec.structs.replace(_CLUSTER, context="other")).state("x")
    with pytest.raises(EngineUnavailable, match="namespace was not found"):
        _submit(Kubernetes(msgspec.structs.replace(_CLUSTER, namespace="other")), _request())


def test_the_role_of_submitters_allows_the_requests_of_the_engine_alone(server: Server) -> None:
    page = (ROOT / "docs" / "how-to" / "train-on-kubernetes.md").read_text()
    role = next(each for each in yaml.safe_load_all(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]))
    allowed = {(verb, name) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    engine, request = Kubernetes(_CLUSTER), _request()

    def use() -> None:
        _submit(engine, request)
        server.pods[request.name] = []
        assert engine.state(request.name).standing == "queued"
        engine.cancel(request.name)

    server.allowed = allowed
    use()
    for missing in allowed:
        server.jobsets.clear()
        server.allowed = allowed - {missing}
        with pytest.raises(EngineUnavailable, match="forbidden"):
            use()


@pytest.fixture
def pods(tmp_path: Path, server: Server) -> Iterator[Controller]:
    with controller.running(server, controller.local(2), tmp_path) as running:
        yield running


def _agent(folder: Path, statuses: str) -> tuple[str, ...]:
    """Return an agent that ends with the next status of its node when all have started: a warning changes it to 75."""
    (folder / "statuses").write_text(statuses)
    agent = folder / "agent.sh"
    agent.write_text(
        f"cd {folder}; trap 'exit 75' USR2\n"
        'echo "$M5WS_RESTART $JOB_COMPLETION_INDEX" >> starts\n'
        'until [ $(grep -c "^$M5WS_RESTART " starts) = 2 ]; do sleep 0.02; done\n'
        'set -- $(sed -n "$((JOB_COMPLETION_INDEX + 1))p" statuses); shift $M5WS_RESTART\n'
        "[ $1 = never ] && { sleep 60 & wait; }\n[ $1 = killed ] && kill -KILL $$\nexit $1\n"
    )
    return ("bash", str(agent))


@pytest.mark.parametrize(
    ("statuses", "starts", "state"),
    [
        ("0\n0", 1, "Completed"),
        ("1\nnever", 1, "Failed"),
        ("130\nnever", 1, "Failed"),
        ("2\nnever", 1, "Failed"),
        ("75 killed 0\nnever never 0", 3, "Completed"),
        ("never 0\n75 0", 2, "Completed"),
        ("75 75 75\nnever never never", 3, "Failed"),
    ],
)
def test_a_jobset_starts_again_where_the_agents_ask_for_it(
    tmp_path: Path, server: Server, pods: Controller, statuses: str, starts: int, state: str
) -> None:
    engine, request = Kubernetes(_CLUSTER), _request(agent=_agent(tmp_path, statuses))
    _submit(engine, request)
    wait_for(lambda: engine.state(request.name).standing == "ended")
    found = engine.state(request.name)
    assert found.text == state and bool(found.reason) == (state == "Failed")
    assert len((tmp_path / "starts").read_text().splitlines()) == 2 * starts


def test_an_evicted_pod_saves_and_all_pods_start_again(tmp_path: Path, server: Server, pods: Controller) -> None:
    engine, request = Kubernetes(_CLUSTER), _request(agent=_agent(tmp_path, "never 0\nnever 0"))
    _submit(engine, request)
    wait_for(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text().splitlines()) == 2)
    assert engine.state(request.name).standing == "running"
    pods.evict(request.name, 1)
    wait_for(lambda: engine.state(request.name).standing == "ended")
    assert engine.state(request.name).text == "Completed"


def test_a_job_that_waits_has_the_reason_of_the_scheduler(tmp_path: Path, server: Server, pods: Controller) -> None:
    pods.hold = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    engine, request = Kubernetes(_CLUSTER), _request(agent=_agent(tmp_path, "never\nnever"))
    _submit(engine, request)
    wait_for(lambda: "Insufficient" in engine.state(request.name).reason)
    assert engine.state(request.name).standing == "queued"
    server.jobsets[request.name]["spec"]["suspend"] = True
    assert engine.state(request.name).reason == "somebody suspended it"
    server.jobsets[request.name]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    assert "queue team of Kueue" in engine.state(request.name).reason
    engine.cancel(request.name)
    assert engine.state(request.name).standing == "unknown"


def test_a_deleted_jobset_ends_its_pods_by_the_warning_of_a_scheduler(
    tmp_path: Path, server: Server, pods: Controller
) -> None:
    engine, request = Kubernetes(_CLUSTER), _request(agent=_agent(tmp_path, "never\nnever"))
    _submit(engine, request)
    wait_for(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text().splitlines()) == 2)
    engine.cancel(request.name)
    wait_for(lambda: all(pod.poll() == 75 for pod in pods.processes.values()))


def test_a_request_has_the_manifest_as_kubectl_reads_it() -> None:
    text = Kubernetes(_FULL).render(_request())
    assert json.loads(json.dumps(documents.read(text))) == yaml.safe_load(text)
