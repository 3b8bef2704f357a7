"""Task files for SkyPilot and dstack: their keys, and the shell in them that starts agents again."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from m5ws.config.settings import DstackCluster, SkyPilotCluster
from m5ws.engines.interface import EngineUnavailable, JobRequest
from m5ws.engines.task_files import TaskFile
from m5ws.errors import UsageError
from m5ws.secret_gate import SecretText
from tests.support.waiting import wait_for

_RUN = "7c1d0a9b8e2f"
_CLUSTERS = [SkyPilotCluster, DstackCluster]


def _request(agent: tuple[str, ...] = ("true",)) -> JobRequest:
    return JobRequest(name=f"m5ws-{_RUN}-1", run=_RUN, nodes=2, agent=agent)


def _script(cluster: SkyPilotCluster | DstackCluster, agent: tuple[str, ...]) -> str:
    """Return the shell in a task file."""
    task = yaml.safe_load(TaskFile(cluster).render(_request(agent)))
    return str(task["run"] if "run" in task else task["commands"][0])


def test_a_file_has_the_keys_of_its_program_and_of_its_user() -> None:
    resources = {"accelerators": "H100:8", "infra": "aws", "use_spot": True}
    task = yaml.safe_load(TaskFile(SkyPilotCluster(task={"resources": resources})).render(_request()))
    assert task.keys() == {"name", "num_nodes", "run", "resources"} and task["resources"] == resources
    assert (task["name"], task["num_nodes"]) == (_request().name, 2)
    task = yaml.safe_load(
        TaskFile(DstackCluster(task={"image": "x", "resources": {"gpu": "H100:8"}})).render(_request())
    )
    assert (task["type"], task["nodes"], task["shell"], task["image"]) == ("task", 2, "bash", "x")


@pytest.mark.parametrize(("cluster", "key"), [(SkyPilotCluster, "run"), (DstackCluster, "nodes")])
def test_a_key_that_m5ws_writes_is_refused(cluster: Any, key: str) -> None:
    with pytest.raises(UsageError, match=f"has {key}, which m5ws writes"):
        TaskFile(cluster(task={key: 1})).render(_request())


@pytest.mark.parametrize("cluster", _CLUSTERS)
def test_a_secret_at_any_place_of_a_file_is_refused(cluster: Any) -> None:
    token = "hf_" + "a1B2c3D4" * 4 + "ab"
    for secret in ({"HF_TOKEN": token}, [f"HF_TOKEN={token}"], [{"with": [token]}], ["password=" + token[3:]]):
        with pytest.raises(SecretText, match="looks like a secret"):
            TaskFile(cluster(task={"env": secret})).render(_request())


@pytest.mark.parametrize("cluster", _CLUSTERS)
@pytest.mark.parametrize(
    ("statuses", "starts", "status"),
    [("0", 1, 0), ("1", 1, 1), ("130", 1, 130), ("75 137 0", 3, 0), ("75 75 75 75", 3, 75), ("140 5", 2, 5)],
)
def test_a_task_starts_its_agent_again_where_the_agent_asks_for_it(
    tmp_path: Path, cluster: Any, statuses: str, starts: int, status: int
) -> None:
    (tmp_path / "statuses").write_text(statuses.replace(" ", "\n"))
    agent = tmp_path / "agent.sh"
    agent.write_text(
        f"cd {tmp_path}; echo x >> starts; status=$(head -n 1 statuses); sed -i 1d statuses\n"
        '[ "$status" = 137 ] && kill -KILL $$\nexit $status\n'
    )
    script = _script(cluster(restarts=2), ("bash", str(agent)))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == status and len((tmp_path / "starts").read_text().split()) == starts


@pytest.mark.parametrize("cluster", _CLUSTERS)
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_task_reaches_its_agent_and_ends_the_task(
    tmp_path: Path, cluster: Any, kind: signal.Signals
) -> None:
    agent = tmp_path / "agent.sh"
    agent.write_text(f"trap 'exit 75' TERM; touch {tmp_path}/started; sleep 60 & wait\n")
    process = subprocess.Popen(["bash", "-c", _script(cluster(), ("bash", str(agent)))], start_new_session=True)
    wait_for((tmp_path / "started").exists)
    process.send_signal(kind)
    assert process.wait(240) == 75
    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("cluster", "command"), [(SkyPilotCluster, "sky jobs launch"), (DstackCluster, "dstack apply -f")]
)
def test_a_submission_writes_the_file_and_asks_no_program(tmp_path: Path, cluster: Any, command: str) -> None:
    engine, request = TaskFile(cluster(), tmp_path / "jobs"), _request()
    script = engine.render(request)
    engine.check(request, script)
    path = tmp_path / "jobs" / f"{request.name}.yaml"
    assert engine.submit(request, script) == f"{command} {path}" and path.read_text() == script
    for ask in (engine.state, engine.cancel):
        with pytest.raises(EngineUnavailable, match="does not ask"):
            ask(request.name)
