"""Installed distributions: their origins without secrets, and code outside of snapshots."""

import importlib
import json
import os
import sysconfig
from pathlib import Path

import pytest

from m5ws.environment import drift
from m5ws.environment.observe import distributions
from m5ws.records.environment import Observed, Origin
from tests.support.workspace.checkouts import write as write_all


def write(path: Path, content: str) -> None:
    write_all(path.parent, {path.name: content})


def site_with_editable(tmp_path: Path, source: Path) -> Path:
    site = tmp_path / "elsewhere"
    write(site / "my_lib-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: My_Lib\nVersion: 1.0\n")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    write(site / "my_lib-1.0.dist-info/direct_url.json", json.dumps(url))
    return site


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        ("https://me:hunter2@host/a.whl", "https://host/a.whl"),
        ("https://me@example.org:hunter2@host/a.whl", "https://host/a.whl"),
        ("https://me:hunter#2?@host/a.whl", "https://host/a.whl"),
        ("https://host/a.whl?token=hunter2hunter2", "https://host/a.whl?token=***"),
        ("ssh://git@host/a.git", "ssh://git@host/a.git"),
        ("ssh://me:hunter2@host/a.git", "ssh://host/a.git"),
    ],
)
def test_the_install_url_of_a_distribution_is_recorded_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, recorded: str
) -> None:
    write(tmp_path / "site/a_b-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a_b\nVersion: 1.0\n")
    direct_url = {"url": url, "vcs_info": {"vcs": "git", "commit_id": "c" * 40}}
    write(tmp_path / "site/a_b-1.0.dist-info/direct_url.json", json.dumps(direct_url))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert distributions.origins(tmp_path)["a-b"].url == recorded


def test_an_installed_copy_of_a_folder_is_identified_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site/tools-1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: tools\nVersion: 1.0\n")
    write(info / "direct_url.json", json.dumps({"url": (tmp_path / "libs").as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    origins = []
    for content, installer in (("old", "1"), ("old", "2"), ("new", "2")):
        lines = (f"tools.py,sha256={content},3", f"tools-1.0.dist-info/INSTALLER,sha256={installer},3", "tools.pyc,,")
        write(info / "RECORD", "\n".join(lines))
        importlib.invalidate_caches()
        origins.append(str(distributions.origins(tmp_path)["tools"]))
    assert origins[0] == origins[1] != origins[2] and origins[0].startswith("files ")
    pinned, seen = (
        Observed(
            distributions={"tools": "1.0"}, origins={"tools": Origin(kind="directory", url="libs", inside=True, hash=h)}
        )
        for h in ("0" * 64, "1" * 64)
    )
    assert [(change.name, change.rating) for change in drift.drift(pinned, seen)] == [("origin.tools", "can")]


@pytest.mark.parametrize("inside", [True, False])
def test_editable_installs_outside_the_workspace_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    root = tmp_path / "workspace"
    source = (root if inside else tmp_path) / "sources of mine"
    source.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site_with_editable(tmp_path, source)))
    assert distributions.installed()["my-lib"] == "1.0"
    assert distributions.outside([root], {}, distributions.origins(root)).get("editable.my-lib") == (
        None if inside else str(source)
    )


def test_folders_on_pythonpath_outside_the_workspace_are_noted(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (tmp_path / "other").mkdir()
    value = os.pathsep.join([str(root / "src"), "lib", str(tmp_path / "other"), str(tmp_path / "absent")])
    facts = distributions.outside([root], {"PYTHONPATH": value}, {})
    assert facts["python.path.outside"] == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Metadata-Version: 2.1\nName: My_Own.tools\nVersion: 1.0\n\nName: another\nVersion: 9\n", "1.0"),
        ("Name: my own.tools\r\nVersion: 1.0 beta\r\nKeywords: a\r\n\r\nVersion: 9\r\n", "1.0 beta"),
        ("name: my-own-tools\nversion: 1\nVersion: 2\n", "1"),
        ("Name: my-own-tools\n", ""),
    ],
)
def test_name_and_version_are_read_from_a_head_of_any_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: str
) -> None:
    folder = tmp_path / "my_own_tools-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(text.encode())
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = [text for name, text in distributions.installed().items() if name.replace(" ", "-") == "my-own-tools"]
    assert versions == [version]


def test_vendored_copies_of_a_package_are_not_listed_as_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An import of setuptools appends its own `_vendor` folder to the path.
    for folder, name in (("holder/_vendor", "held-copy"), ("plain/_vendor", "of-the-user")):
        write(
            tmp_path / folder / f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    write(tmp_path / "holder/__init__.py", "")
    installed = distributions.installed()
    assert installed.get("of-the-user") == "1.0"
    assert "held-copy" not in installed


def test_a_distribution_is_identified_by_its_modules_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {
        "one": (
            "shared_by_two/one.py",
            f"one{sysconfig.get_config_var('EXT_SUFFIX')}",
            "one.libs/liba.so",
            "../../../bin/one",
        ),
        "two": ("shared_by_two/two/__init__.py", "../../../lib/libtwo.so.2", "two.pth", "__pycache__/two.pyc"),
        "code": ("package_of_two/__init__.py", "package_of_two/code.py"),
        "code_too": ('"package_of_two/more, of it.py"',),
        "link": ("link-1.dist-info/direct_url.json",),
    }
    for name, files in listed.items():
        info = tmp_path / f"site/{name}-1.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        write(info / "RECORD", "".join(f"{file},,\n" for file in (*files, f"{name}-1.dist-info/RECORD")))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    places = distributions.provides()
    assert places["one"] == ("one", "one.libs", "shared_by_two/one")
    assert places["two"] == ("/lib/libtwo.so.2", "shared_by_two/two")
    assert places["code"] == places["code-too"] == ("package_of_two",)
    assert "link" not in places
