"""`m5ws doctor` with a real server of MLflow and a store in S3: all is well, then each of them is away."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.network import ports
from tests.support.s3.s3_servers import S3Server
from tests.support.waiting import wait_for
from tests.support.workspace.checkouts import write

pytestmark = [pytest.mark.services, pytest.mark.soak]
_ADDRESS = "127.0.0.1"


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((_ADDRESS, port)) == 0


@pytest.fixture
def tracking(tmp_path: Path) -> Iterator[str]:
    """The address of a server of MLflow with an empty database."""
    port = ports.free(host=_ADDRESS)
    database = ("--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}")
    command = [sys.executable, "-m", "mlflow", "server", "--host", _ADDRESS, "--port", str(port), "--workers", "1"]
    quiet = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen([*command, *database], cwd=tmp_path, env=quiet, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port) or None)
        yield f"http://{_ADDRESS}:{port}"
    finally:
        server.terminate()
        server.wait(30)


def failed(root: Path, s3: S3Server, bucket: str, tracking: str) -> dict[str, str]:
    """Return the state of each failed check, in a workspace with this bucket and this tracking store."""
    store = f"[store]\nurl = 's3://{bucket}/team'\nendpoint_url = '{s3.endpoint}'\n"
    write(root, {"m5ws.toml": f"{store}[mlflow]\ntracking_uri = '{tracking}'\n"})
    command = [sys.executable, "-m", "m5ws", "-C", str(root), "doctor", "--timeout", "60", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode == 0) == document["passed"], done.stderr
    return {check["name"]: check["state"] for check in document["checks"] if check["remedy"]}


def test_doctor_passes_with_servers_that_answer_and_names_each_server_that_does_not(
    tmp_path: Path, s3_environment: None, s3_server: S3Server, tracking: str
) -> None:
    bucket, root = s3_server.bucket(), tmp_path / "place"
    assert failed(root, s3_server, bucket, tracking) == {}
    assert "Contents" not in s3_server.client().list_objects_v2(Bucket=bucket), "keys of the test remain"
    assert failed(root, s3_server, "no-bucket", tracking) == {"store": "broken"}
    assert failed(root, s3_server, bucket, f"http://{_ADDRESS}:1") == {"tracking": "broken"}
