"""The places of an attempt under `[run] inputs = "pinned"`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from m5ws.agent import access
from m5ws.errors import UsageError
from m5ws.records.launch import Access
from tests.support.ranks.orders import orders


def _find(tmp_path: Path, checkout: Path, python: Path, **variables: str) -> Access:
    context = orders(tmp_path / "home" / "runs" / "r" / "0001", author_dir=str(checkout))
    environment = {"HOME": str(tmp_path / "user"), "TMPDIR": str(tmp_path / "temporary"), **variables}
    return access._find(context, environment, str(python))


def _environment(place: Path, *paths: Path) -> Path:
    """Return the interpreter of a new virtual environment with folders on its import path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [site] = place.glob("lib/python*/site-packages")
    (site / "more.pth").write_text("".join(f"{path}\n" for path in paths))
    return place / "bin" / "python"


def _allows(places: tuple[str, ...], path: Path) -> bool:
    return any(path.is_relative_to(place) for place in places)


def test_an_environment_in_the_checkout_is_readable_and_the_checkout_is_not(tmp_path: Path) -> None:
    checkout, installed, tools = (tmp_path / name for name in ("w/project", "w/installed", "w/tools"))
    for folder in (checkout / "src", installed, tools):
        folder.mkdir(parents=True)
    # Paths of editable installs: of the workspace's own package, and of another folder.
    python = _environment(checkout / "deep/er/.venv", checkout, checkout / "src", installed)
    found = _find(tmp_path, checkout, python, PATH=f"{tools}:{checkout}:.:", PYTHONPATH=str(tmp_path / "unpinned"))
    for folder in (installed, tools, checkout / "deep/er/.venv/lib", Path(sys.base_prefix), Path("/usr/lib")):
        assert _allows(found.read, folder) and not _allows(found.write, folder)
    for file in (checkout / "src/a.py", checkout / "data", tmp_path / "unpinned", tmp_path / "user", Path("/tmp")):
        assert not _allows(found.read, file) and not _allows(found.write, file)


@pytest.mark.parametrize(("database", "is_allowed"), [("m", True), ("home/mlflow", True), ("home", False), ("", False)])
def test_a_database_is_writable_if_no_other_run_is_beside_it(tmp_path: Path, database: str, is_allowed: bool) -> None:
    uri = f"sqlite:///{tmp_path / database}/mlflow.db"
    found = _find(tmp_path, tmp_path / "checkout", Path(sys.executable), MLFLOW_TRACKING_URI=uri)
    assert _allows(found.write, tmp_path / database / "mlflow.db-journal") == is_allowed


def test_folders_of_the_attempt_are_writable_and_folders_of_other_runs_are_not(tmp_path: Path) -> None:
    found = _find(tmp_path, tmp_path / "checkout", Path(sys.executable))
    attempt = tmp_path / "home" / "runs" / "r" / "0001"
    caches = [tmp_path / "user" / folder for folder in (".cache/torch_extensions", ".triton/cache")]
    for folder in (attempt, attempt / "store", attempt.parent / "ranks", tmp_path / "temporary", *caches):
        assert _allows(found.write, folder)
    assert all(folder.is_dir() for folder in caches)
    for folder in (attempt.parent / "0002", tmp_path / "home" / "mlflow.db", tmp_path / "user" / ".ssh"):
        assert not _allows((*found.read, *found.write), folder)
    assert all(not os.path.exists(place) or Path(place).stat().st_mode & 0o060000 != 0o060000 for place in found.write)


@pytest.mark.parametrize("folder", [".", "project"])
def test_a_workspace_in_a_readable_folder_is_an_error(tmp_path: Path, folder: str) -> None:
    python = _environment(tmp_path / "a/b/environment")
    (tmp_path / "a/b/environment" / folder).mkdir(exist_ok=True)
    with pytest.raises(UsageError, match="cannot refuse files of the workspace inside of"):
        _find(tmp_path, tmp_path / "a/b/environment" / folder, python)
