"""`init --team`: a team lead creates a profile, and each other workspace inherits it."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from m5ws import workspace
from m5ws.config.settings import Settings
from m5ws.library.clusters import Cluster
from m5ws.projects import init
from tests.cli.conftest import DOCTOR, M5
from tests.support.workspace.checkouts import commit_all, git


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def team(tmp_path: Path, m5: M5) -> Path:
    """A profile that `init` has created, with a store in a folder."""
    path = tmp_path / "team.toml"
    given = ("--store", tmp_path / "store", "--tracking-uri", "http://mlflow.example.org")
    assert m5("init", "--team", path, *given, tmp_path / "first").status == 0
    return path


def test_a_profile_is_created_with_the_options_and_the_workspace_extends_it(tmp_path: Path, team: Path) -> None:
    profile = {"url": str(tmp_path / "store")}, {"tracking_uri": "http://mlflow.example.org"}
    assert tomllib.loads(team.read_text()) == {"store": profile[0], "mlflow": profile[1], "clusters": {}}
    own = tomllib.loads((tmp_path / "first" / "m5ws.toml").read_text())
    assert own["extends"] == str(team) and "store" not in own
    assert (tmp_path / "store" / "format").is_file()


@pytest.mark.parametrize("template", [None, *init.templates()])
def test_a_later_workspace_inherits_the_profile(tmp_path: Path, team: Path, m5: M5, template: str | None) -> None:
    team.write_text(f"{team.read_text()}big = {{ engine = 'slurm' }}\n")
    before = team.read_bytes()
    given = () if template is None else ("--template", template)
    done = m5("init", "--team", team, *given, "--json", tmp_path / "second")
    assert done.status == 0 and "m5ws.toml" in done.document["files"] and str(team) not in done.document["files"]
    assert team.read_bytes() == before
    found = workspace.find(tmp_path / "second")
    assert (found.store_url, found.tracking_uri) == (str(tmp_path / "store"), "http://mlflow.example.org")
    assert "big" in found.settings.clusters
    assert "store" not in tomllib.loads((tmp_path / "second" / "m5ws.toml").read_text())


def test_each_example_in_a_new_profile_is_accepted(tmp_path: Path, team: Path, m5: M5) -> None:
    team.write_text(
        "\n".join(line.removeprefix("# ") if " = {" in line else line for line in team.read_text().split("\n"))
    )
    assert m5("init", "--team", team, tmp_path / "second").status == 0
    assert len(workspace.find(tmp_path / "second").settings.clusters) == 2


def test_a_relative_profile_belongs_to_the_workspace(tmp_path: Path, m5: M5) -> None:
    done = m5("-C", tmp_path, "init", "--team", "team.toml", "--store", tmp_path / "store", "w")
    assert done.status == 0 and "init --team team.toml" in done.err
    assert {"team.toml", "m5ws.toml"} <= _files(tmp_path / "w")
    assert workspace.find(tmp_path / "w").store_url == str(tmp_path / "store")


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--store", "relative"),
        ("--store", "{tmp}/store", "--region", "eu-west-1"),
        ("--store", "{tmp}/store", "--tracking-uri", "http://ada:hunter2secret@mlflow.example.org"),
    ],
)
def test_a_new_profile_that_cannot_serve_a_team_is_refused(tmp_path: Path, m5: M5, given: tuple[str, ...]) -> None:
    done = m5("init", "--team", tmp_path / "team.toml", *(word.format(tmp=tmp_path) for word in given), tmp_path / "w")
    assert done.status == 2 and "hunter2" not in done.err
    assert _files(tmp_path) == set()


def test_options_of_a_store_beside_an_existing_profile_are_refused(tmp_path: Path, team: Path, m5: M5) -> None:
    for given in (("--store", "s3://team/a"), ("--tracking-uri", "http://other.example.org")):
        done = m5("init", "--team", team, *given, tmp_path / "second")
        assert done.status == 2 and str(team) in done.err
    assert not (tmp_path / "second").exists()


def test_a_broken_profile_is_named_and_nothing_is_written(tmp_path: Path, team: Path, m5: M5) -> None:
    team.write_text("[stor]\n")
    done = m5("init", "--team", team, tmp_path / "second")
    assert done.status == 2 and f"{team}:1: " in done.err
    assert not (tmp_path / "second").exists()


def test_a_missing_folder_of_a_profile_is_not_created(tmp_path: Path, m5: M5) -> None:
    done = m5("init", "--team", tmp_path / "mount" / "team.toml", "--store", tmp_path / "store", tmp_path / "w")
    assert done.status == 3 and str(tmp_path / "mount") in done.err
    assert _files(tmp_path) == set()


def test_doctor_names_the_profile(tmp_path: Path, team: Path, m5: M5) -> None:
    checks = m5("-C", tmp_path / "first", *DOCTOR, "--json").document["checks"]
    assert str(team) in next(check["detail"] for check in checks if check["name"] == "workspace")


def test_a_snapshot_has_the_same_id_under_each_profile(tmp_path: Path, team: Path, m5: M5) -> None:
    git(tmp_path / "first", "init", "-q")
    commit_all(tmp_path / "first")
    before = m5("-C", tmp_path / "first", "snapshot", "--json").document["snapshot"]
    team.write_text(team.read_text().replace("/store", "/other").replace("mlflow.example", "other.example"))
    after = m5("-C", tmp_path / "first", "snapshot", "--json").document["snapshot"]
    assert (tmp_path / "other" / "format").is_file()
    assert before == after


def test_a_job_has_the_settings_of_the_profile_and_no_path_of_it(tmp_path: Path, team: Path, m5: M5) -> None:
    team.write_text(f"{team.read_text()}lab = {{ engine = 'hosts', hosts = ['a'], shared = ['{tmp_path}'] }}\n")
    planned = Cluster(workspace.find(tmp_path / "first"), "lab").plan("0" * 12, 1)
    settings = msgspec.json.decode(planned.job.settings, type=Settings)
    assert settings.extends is None and settings.mlflow.tracking_uri == "http://mlflow.example.org"
    assert settings.clusters["lab"].shared == (str(tmp_path),)
