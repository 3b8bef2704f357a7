"""The wheel contains all that an installed m5ws needs: templates with links followed, data files, entry points."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, as pip installs it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_templates_are_whole(installed: Path) -> None:
    for name in ("gpt-fsdp", "gpt-deepspeed"):
        for source in (path for path in (ROOT / "templates" / name).rglob("*") if path.is_file()):
            if not {"__pycache__", "data", "tokenizer"}.intersection(source.relative_to(ROOT).parts):
                shipped = installed / "m5ws" / "_templates" / source.relative_to(ROOT / "templates")
                assert shipped.is_file() and not shipped.is_symlink()
                assert shipped.read_bytes() == source.read_bytes()


def test_every_file_of_the_package_is_there(installed: Path) -> None:
    files = {path.relative_to(ROOT) for path in (ROOT / "m5ws").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert not [path for path in files if not (installed / path).is_file()]
    assert not list(installed.glob("tests*"))


def test_commands_and_plug_ins_are_named(installed: Path) -> None:
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read(entry_points)
    assert dict(parser["console_scripts"]) == {"m5ws": "m5ws.__main__:program"}
    assert dict(parser["mlflow.run_context_provider"]) == {"m5ws": "m5ws.tracking.mlflow.context_provider:M5Context"}


def test_an_installed_m5ws_makes_a_workspace(installed: Path, tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "m5ws", "init", "--template", "gpt-deepspeed", str(tmp_path / "w"))
    subprocess.run(argv, cwd=tmp_path, env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "w" / "model.py").read_bytes() == (ROOT / "templates" / "gpt" / "model.py").read_bytes()
    assert (tmp_path / "w" / ".gitignore").is_file()
