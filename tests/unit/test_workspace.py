"""The workspace is found upwards, and makes directories only when it writes."""

import os
import pwd
import re
import socket
from pathlib import Path

import pytest

from m5ws import workspace
from m5ws.errors import NotFound
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository.repository import Repository
from tests.support.stores.memory_store import MemoryStore


def _workspace(root: Path, text: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "m5ws.toml").write_text(text)
    return root


def test_a_workspace_is_found_from_a_directory_below_its_root(tmp_path: Path) -> None:
    root = _workspace(tmp_path / "work")
    below = root / "a" / "b"
    below.mkdir(parents=True)
    assert workspace.find(below, {}).root == root


def test_the_nearest_workspace_is_found(tmp_path: Path) -> None:
    _workspace(tmp_path / "outer")
    inner = _workspace(tmp_path / "outer" / "inner")
    assert workspace.find(inner, {}).root == inner


def test_a_missing_workspace_is_an_error_with_a_hint_to_init(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=rf"m5ws\.toml .*{re.escape(str(tmp_path))}") as caught:
        workspace.find(tmp_path, {})
    assert "m5ws init" in caught.value.hint


def test_a_missing_directory_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"directory.*gone"):
        workspace.find(tmp_path / "gone", {})


def test_finding_a_workspace_writes_nothing(tmp_path: Path) -> None:
    root = _workspace(tmp_path)
    here = workspace.find(root, {})
    with pytest.raises(NotFound, match=r"\.m5ws/store"):
        here.repository()
    assert [path.name for path in root.iterdir()] == ["m5ws.toml"]


def test_a_new_store_has_its_own_ignore_file(tmp_path: Path) -> None:
    here = workspace.find(_workspace(tmp_path), {})
    here.repository(create=True)
    assert (tmp_path / ".m5ws" / ".gitignore").read_text() == "*\n"
    assert here.repository().store.url == str(tmp_path / ".m5ws" / "store")


def test_a_relative_store_is_taken_from_the_workspace_not_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _workspace(tmp_path / "work", '[store]\nurl = "../elsewhere"\n')
    monkeypatch.chdir(tmp_path)
    workspace.find(root, {}).repository(create=True)
    assert (tmp_path / "elsewhere" / "format").is_file()


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, "sqlite:///{root}/.m5ws/mlflow/mlflow.db"),
        ("", {"MLFLOW_TRACKING_URI": "http://server"}, "http://server"),
        ("[mlflow]\ntracking_uri = 'http://own'\n", {"MLFLOW_TRACKING_URI": "http://server"}, "http://own"),
    ],
)
def test_the_tracking_store_comes_from_the_file_the_variable_or_the_default(
    tmp_path: Path, text: str, environment: dict[str, str], expected: str
) -> None:
    here = workspace.find(_workspace(tmp_path, text), environment)
    assert here.tracking_uri == expected.format(root=tmp_path)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, None),
        ("url = 'file:///somewhere'", {}, None),
        ("cache = 'near'", {}, "{root}/near"),
        ("url = 's3://bucket/a'", {}, "{home}/.cache/m5ws"),
        ("url = 's3://bucket/a'", {"XDG_CACHE_HOME": "/fast"}, "/fast/m5ws"),
        ("url = 's3://bucket/a'", {"XDG_CACHE_HOME": "not/absolute"}, "{home}/.cache/m5ws"),
        ("url = 's3://bucket/a'\ncache = '/nvme'", {"XDG_CACHE_HOME": "/fast"}, "/nvme"),
        ("url = 's3://bucket/a'\ncache = '~/near'", {}, "{home}/near"),
    ],
)
def test_a_store_that_is_not_a_directory_has_a_cache(
    tmp_path: Path, text: str, environment: dict[str, str], expected: str | None
) -> None:
    here = workspace.find(_workspace(tmp_path, f"[store]\n{text}\n"), environment)
    wanted = expected and Path(expected.format(root=tmp_path, home=Path.home()))
    assert here.cache_dir == wanted


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, "{home}/.local/state/m5ws/work"),
        ("", {"XDG_STATE_HOME": "/fast"}, "/fast/m5ws/work"),
        ("", {"XDG_STATE_HOME": "not/absolute"}, "{home}/.local/state/m5ws/work"),
        ("work_dir = '/nvme/ada'", {"XDG_STATE_HOME": "/fast"}, "/nvme/ada"),
        ("work_dir = '~/work'", {}, "{home}/work"),
        ("work_dir = '../work'", {}, "{root}/../work"),
    ],
)
def test_the_work_root_comes_from_the_settings_or_the_state_directory(
    tmp_path: Path, text: str, environment: dict[str, str], expected: str
) -> None:
    here = workspace.find(_workspace(tmp_path, f"[run]\n{text}\n"), environment)
    assert here.work_root == Path(expected.format(root=tmp_path, home=Path.home()))


def test_a_workspace_without_a_name_has_the_name_of_its_directory(tmp_path: Path) -> None:
    assert workspace.find(_workspace(tmp_path / "gpt"), {}).name == "gpt"
    assert workspace.find(_workspace(tmp_path / "other", "name = 'gpt'\n"), {}).name == "gpt"


def test_dvc_datasets_are_not_searched_if_dvc_is_disabled(tmp_path: Path) -> None:
    assert workspace.find(_workspace(tmp_path, "[data]\ndvc = false\n"), {}).datasets() is None


def test_a_setting_leaves_the_user_and_the_host_out_of_the_record_of_a_run(tmp_path: Path) -> None:
    repo = Repository.create(MemoryStore())
    run = Run(id="a" * 12, snapshot="0" * 64, spec=LaunchSpec(command=("train.py",)))
    signed = workspace.find(_workspace(tmp_path / "a"), {}).ports(repo).sign(run)
    assert (signed.user, signed.host) == (pwd.getpwuid(os.getuid()).pw_name, socket.gethostname())
    without = workspace.find(_workspace(tmp_path / "b", "[run]\nrecord_user = false\n"), {}).ports(repo).sign(run)
    assert (without.user, without.host) == (None, None)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("", {}, "`m5ws ui --deliver`"),
        ("", {"MLFLOW_TRACKING_URI": "http://a:5000"}, "`MLFLOW_TRACKING_URI=http://a:5000 m5ws ui --deliver`"),
        (
            "",
            {"MLFLOW_TRACKING_URI": "http://me:a-Secret-9-word@a:5000"},
            "`m5ws ui --deliver` (with MLFLOW_TRACKING_URI as in this environment)",
        ),
        (
            '[mlflow]\ntracking_uri = "http://b"\n',
            {"MLFLOW_TRACKING_URI": "http://a:5000", "MLFLOW_TRACKING_TOKEN": "t", "MLFLOW_TRACKING_USERNAME": ""},
            "`m5ws ui --deliver` (with MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME as in this environment)",
        ),
    ],
)
def test_the_command_that_completes_pages_names_all_that_it_needs_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, environment: dict[str, str], expected: str
) -> None:
    root = _workspace(tmp_path / "a b", text)
    monkeypatch.chdir(root)
    tracker = workspace.find(root, environment).tracker()
    assert tracker is not None and tracker.remedy == expected
    monkeypatch.chdir(tmp_path)
    elsewhere = workspace.find(root, environment).tracker()
    assert elsewhere is not None
    assert elsewhere.remedy == expected.replace("m5ws ui", f"m5ws -C '{root}' ui")
