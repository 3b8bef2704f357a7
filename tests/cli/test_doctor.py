"""`m5ws doctor` on the command line: in a workspace, outside, and with broken parts."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.repository.repository import Repository
from tests.cli.conftest import DOCTOR, M5, Outcome
from tests.support.workspace.checkouts import write

_NOBODY = 65534


def failed(done: Outcome) -> dict[str, dict[str, str]]:
    """Return the checks that did not pass, by name. Each has a remedy."""
    document = done.document
    checks = {check["name"]: check for check in document["checks"] if check["state"] in ("missing", "broken")}
    assert all(check["remedy"] for check in checks.values())
    assert (done.status, document["passed"]) == ((1, False) if checks else (0, True))
    return checks


def test_a_workspace_with_everything_passes(m5: M5, place: Path, home: Repository) -> None:
    done = m5(*DOCTOR)
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert done.status == 0 and str(place) in lines["workspace"] and "each key has one writer" in lines["store"]
    assert "torch 2." in lines["train"] and "(<" in lines["train"]
    assert not failed(m5(*DOCTOR, "--json"))
    # Keys of the test are deleted.
    assert [entry.key for entry in home.store.list("")] == ["format"]


def test_outside_of_a_workspace_the_machine_alone_is_checked(m5: M5, tmp_path: Path) -> None:
    done = m5("-C", tmp_path, *DOCTOR, "--json")
    assert not failed(done)
    states = {check["name"]: check["state"] for check in done.document["checks"]}
    assert states["workspace"] == "not needed" and not {"store", "tracking"} & states.keys()
    assert not list(tmp_path.iterdir())


def test_a_failed_check_is_followed_by_its_remedy(m5: M5, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    assert failed(m5(*DOCTOR, "--json"))["git"]["state"] == "missing"
    lines = m5(*DOCTOR).out.splitlines()
    (number,) = (number for number, line in enumerate(lines) if line.startswith("git "))
    assert lines[number + 1].split()[:2] == ["remedy", "Install"]


@pytest.mark.parametrize(
    ("text", "name", "noun"),
    [
        ("[store]\nurl = 's3://a/b'\n", "store", "lower-case"),
        ("[store]\nurl = 'ftp://host/store'\n", "store", "s3://bucket"),
        ("[store]\nbucket = 'store'\n", "workspace", "m5ws.toml"),
    ],
)
def test_an_error_in_the_settings_is_broken(m5: M5, place: Path, text: str, name: str, noun: str) -> None:
    write(place, {"m5ws.toml": f"[mlflow]\nenabled = false\n{text}"})
    checks = failed(m5(*DOCTOR, "--json"))
    assert checks.keys() == {name} and noun in str(checks[name])


def test_a_server_of_mlflow_that_is_down_is_broken(m5: M5, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write(place, {"m5ws.toml": f"[mlflow]\ntracking_uri = 'http://someone:secret-word-1@127.0.0.1:{port}'\n"})
    done = m5(*DOCTOR, "--json")
    checks = failed(done)
    assert checks.keys() == {"tracking"} and "secret-word-1" not in done.out
    assert "tracking_uri" in checks["tracking"]["remedy"]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that every user may read. A test of the superuser, who may write everywhere, becomes another user."""
    folder = Path("/tmp", f"m5ws-doctor-{os.getpid()}")
    folder.mkdir(mode=0o755)
    yield folder
    if os.getuid() == 0:
        os.seteuid(0)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_store_without_write_permission_is_broken(m5: M5, read_only: Path) -> None:
    write(read_only, {"m5ws.toml": "[mlflow]\nenabled = false\n"})
    assert not failed(m5("-C", read_only, *DOCTOR, "--json"))
    for folder in (read_only / ".m5ws", read_only):
        folder.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(_NOBODY)
    # The interpreter may be out of this user's reach, so that other checks fail too.
    checks = failed(m5("-C", read_only, *DOCTOR, "--json"))
    assert checks["store"]["state"] == "broken" and "write permission" in checks["store"]["remedy"]
