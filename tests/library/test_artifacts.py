"""Files of runs as MLflow's artifacts: read by themselves, and through a real server, its addresses and its pages."""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact import artifact_repository_registry as registry

from m5ws import workspace
from m5ws.errors import NotFound
from m5ws.library.artifacts import RunFiles, artifact_repository
from m5ws.repository.references import checkpoints, outputs
from m5ws.tracking.mlflow.follower import Follower
from m5ws.tracking.mlflow.run_page import find
from m5ws.tracking.mlflow.tracker import Mlflow
from tests.library.conftest import Planted, plant
from tests.support.files.exports import bits
from tests.support.machine import mlflow_server
from tests.support.machine.chromium import Browser, executable

_POINT = "[mlflow.artifact_repository]\nm5ws = m5ws.library.artifacts:artifact_repository\n"


def _walk(files: RunFiles, folder: str = "") -> Iterator[tuple[str, int]]:
    for name, size in files.list(folder):
        path = f"{folder}/{name}".lstrip("/")
        yield from _walk(files, path) if size is None else ((path, size),)


def _read(files: RunFiles, path: str, folder: Path) -> bytes:
    files.write(path, folder / "file")
    return (folder / "file").read_bytes()


def test_a_run_has_files_of_its_checkpoints_outputs_and_snapshot(planted_workspace: Planted, tmp_path: Path) -> None:
    repo, run = planted_workspace.repo, planted_workspace.run
    files = RunFiles(repo, run)
    listed = dict(_walk(files))
    contents = {path: _read(files, path, tmp_path) for path in listed}
    assert contents["snapshot/train.py"] == b"print('trained')\n"
    assert contents["snapshot/config.yaml"] == b"optimizer:\n  lr: 0.1\n"
    valid = checkpoints.valid(repo, run)
    assert {path.split("/")[1] for path in listed if path.startswith("checkpoints/")} == set(valid)
    assert {path.split("/")[1] for path in listed if path.startswith("outputs/")} == set(outputs.names(repo, run))
    for name in valid:
        loaded = safetensors.torch.load(contents[f"checkpoints/{name}/checkpoint.safetensors"])
        weights = planted_workspace.weights[checkpoints.step_of(name)]
        assert bits(loaded) == bits({f"model.{key}": weights[key] for key in ("bias", "weight")})
        assert json.loads(contents[f"checkpoints/{name}/m5ws-checkpoint.json"])["name"] == name
    # The size of the file about an export is not known before it is written.
    assert all(listed[path] in (0, len(content)) for path, content in contents.items())
    for folder in ("checkpoints/" + valid[0], "outputs/" + outputs.names(repo, run)[0]):
        below = RunFiles(repo, run, folder)
        assert {f"{folder}/{path}" for path, _ in _walk(below)} == {path for path in listed if path.startswith(folder)}


@pytest.mark.parametrize(
    "path",
    ["", "snapshot", "snapshot/absent", "snapshot/../snapshot/train.py", "checkpoints/../../format/x", "outputs/a/b"],
)
def test_a_path_that_no_record_contains_is_no_file(planted_workspace: Planted, path: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        RunFiles(planted_workspace.repo, planted_workspace.run).write(path, tmp_path / "file")


class _Site(msgspec.Struct):
    """A server, and the MLflow run and experiment of a run whose experiment has its files in the store."""

    port: int
    planted: Planted
    page: str
    experiment: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, address: str, **words: str) -> bytes:
        query = urllib.parse.urlencode(words)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{address}?{query}") as answer:
            content: bytes = answer.read()
        return content


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Site]:
    folder = tmp_path_factory.mktemp("site")
    made = plant(folder)
    # As an installed m5ws registers it. The packages of this interpreter may be of an earlier version.
    info = folder / "site" / "m5ws_artifacts_test-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: m5ws-artifacts-test\nVersion: 0\n")
    (info / "entry_points.txt").write_text(_POINT)
    argv = [sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1", "--port"]
    own = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/m.db", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    own |= {"M5WS_STORES": f"other=/absent team={made.repo.store.url}", "PYTHONPATH": str(info.parent)}
    with (
        mlflow_server.running(lambda port: [*argv, str(port)], folder, os.environ | own) as port,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        url = f"http://127.0.0.1:{port}"
        tracker = Mlflow(url, "team", made.repo.store.url, folder / "runs", store_id="team")
        Follower(tracker.options(made.run, once=True)).advance(last=True)
        client = MlflowClient(url)
        (page,) = find(client, made.run)
        yield _Site(port, made, page, client.get_run(page).info.experiment_id)


@pytest.mark.services
def test_a_server_lists_and_sends_the_files_of_a_run_and_refuses_writes(
    site: _Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, client = RunFiles(site.planted.repo, site.planted.run), MlflowClient(site.url)
    assert client.get_run(site.page).info.artifact_uri == f"m5ws://team/{site.page}/artifacts"
    # The addresses of MLflow's pages.
    top = json.loads(site.get("ajax-api/2.0/mlflow/artifacts/list", run_uuid=site.page))
    assert [(each["path"], each["is_dir"]) for each in top["files"]] == [(name, True) for name, _ in files.list("")]
    for path, _ in _walk(files):
        assert site.get("get-artifact", run_uuid=site.page, path=path) == _read(files, path, tmp_path), path
    for model in client.search_logged_models([site.experiment]):
        (label,) = (value for key, value in (model.params or {}).items() if key in ("checkpoint", "outputs"))
        folder = f"{'outputs' if 'outputs' in (model.params or {}) else 'checkpoints'}/{label}"
        address = f"ajax-api/2.0/mlflow/logged-models/{model.model_id}/artifacts"
        names = json.loads(site.get(f"{address}/directories"))["files"]
        assert [each["path"] for each in names] == [name for name, _ in files.list(folder)]
        for path, _ in _walk(RunFiles(site.planted.repo, site.planted.run, folder)):
            sent = site.get(f"{address}/files", artifact_file_path=path)
            assert sent == _read(files, f"{folder}/{path}", tmp_path)
    with pytest.raises(urllib.error.HTTPError) as absent:
        site.get("get-artifact", run_uuid=site.page, path="snapshot/absent")
    assert absent.value.code == 404
    # A client reads the store itself, if it has the variable.
    monkeypatch.setitem(registry._artifact_repository_registry._registry, "m5ws", artifact_repository)
    with pytest.raises(MlflowException, match="read-only"):
        client.log_text(site.page, "text", "mine.txt")
    with pytest.raises(MlflowException, match="M5WS_STORES of this process does not list the store 'team'"):
        client.list_artifacts(site.page)
    monkeypatch.setenv("M5WS_STORES", f"team={site.planted.repo.store.url}")
    got = Path(client.download_artifacts(site.page, "snapshot", str(tmp_path)))
    assert (got / "train.py").read_text() == "print('trained')\n"


@pytest.mark.services
@pytest.mark.parametrize("location", ["m5ws://unknown", "m5ws:///etc", "m5ws://other"])
def test_a_location_opens_no_store_that_the_server_does_not_list(site: _Site, location: str) -> None:
    client = MlflowClient(site.url)
    experiment = client.create_experiment(f"of {location}", artifact_location=location)
    page = client.create_run(experiment, tags={"m5ws.run_id": site.planted.run}).info.run_id
    with pytest.raises(urllib.error.HTTPError) as refused:
        site.get("ajax-api/2.0/mlflow/artifacts/list", run_uuid=page)
    assert refused.value.code == 404
    known = client.create_experiment(f"known {location}", artifact_location="m5ws://team")
    page = client.create_run(known).info.run_id
    with pytest.raises(urllib.error.HTTPError) as untagged:
        site.get("ajax-api/2.0/mlflow/artifacts/list", run_uuid=page)
    assert untagged.value.code == 404 and "belongs to no run of m5ws" in untagged.value.read().decode()


@pytest.mark.services
@pytest.mark.skipif(executable() is None, reason="no chromium is installed (Debian: apt-get install chromium)")
def test_the_artifacts_page_shows_the_files_of_a_run(site: _Site, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{site.url}/#/experiments/{site.experiment}/runs/{site.page}/artifacts")
        name = checkpoints.valid(site.planted.repo, site.planted.run)[0]
        for folder, child in (("snapshot", "train.py"), ("checkpoints", name)):
            path = f"//*[text()[normalize-space()='{folder}']]"
            row = f'document.evaluate("{path}", document, null, 9, null).singleNodeValue'
            browser.until(f"{row} !== null")
            browser.evaluate(f"{row}.click()")
            browser.until(f"document.body.innerText.includes('{child}')")


def test_the_setting_names_the_store_for_a_server_alone(planted_workspace: Planted) -> None:
    path = planted_workspace.root / "m5ws.toml"
    for uri, expected in (("http://h", "m5ws://team"), ("sqlite:////m.db", "file:///mlartifacts")):
        path.write_text(f"name = 'w'\n[mlflow]\ntracking_uri = '{uri}'\nstore_id = 'team'\n")
        tracker = workspace.find(planted_workspace.root, {}).tracker()
        assert isinstance(tracker, Mlflow) and tracker.options("0" * 12).location == expected
