"""The wheel contains all that an installed m5ws needs: templates with links followed, data files, entry points."""

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


SUMS = """
import sys, torch
from m5ws.training.fingerprint import fingerprint
values = fingerprint.sums([torch.arange(1000.0), torch.arange(99).to(torch.bfloat16)])
print(values, "m5ws.training.fingerprint.kernel" in sys.modules)
"""


def build(target: str, source: Path, folder: Path, **environment: str) -> Path:
    """Build a wheel or a source distribution and return its path."""
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder))
    subprocess.run(command, cwd=source, check=True, capture_output=True, env=os.environ | environment)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def unpacked(wheel: Path) -> Path:
    """Return a folder with the wheel's files, as pip installs it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.parent / "site")  # our own
    return wheel.parent / "site"


def sums(site: Path) -> list[str]:
    """Return the output of SUMS with an installed m5ws, on a machine with no other program than Python: two words."""
    environment = {"PYTHONPATH": str(site), "PATH": "/nonexistent"}
    command = (sys.executable, "-c", SUMS)
    done = subprocess.run(command, cwd=site, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.rsplit(maxsplit=1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    return unpacked(wheel)


@pytest.mark.long
def test_sums_are_equal_with_and_without_the_compiled_kernel_of_the_wheel(
    wheel: Path, installed: Path, tmp_path: Path
) -> None:
    assert "-cp311-abi3-linux_" in wheel.name
    (tmp_path / "source").mkdir()
    # Python before 3.11.4 has no filter of members.
    subprocess.run(["tar", "-xf", build("sdist", ROOT, tmp_path / "sdist"), "-C", tmp_path / "source"], check=True)
    (source,) = (tmp_path / "source").iterdir()
    without = build("wheel", source, tmp_path / "without", CC="/nonexistent/cc")
    assert without.name.endswith("-py3-none-any.whl")
    compiled, computed = sums(installed), sums(unpacked(without))
    assert compiled[0] == computed[0] and (compiled[1], computed[1]) == ("True", "False")


def test_the_wheel_contains_all_template_files(installed: Path) -> None:
    for name in ("gpt-fsdp", "gpt-deepspeed"):
        for source in (path for path in (ROOT / "templates" / name).rglob("*") if path.is_file()):
            if not {"__pycache__", "data", "tokenizer"}.intersection(source.relative_to(ROOT).parts):
                shipped = installed / "m5ws" / "_templates" / source.relative_to(ROOT / "templates")
                assert shipped.is_file() and not shipped.is_symlink()
                assert shipped.read_bytes() == source.read_bytes()


def test_the_wheel_contains_every_file_of_the_package(installed: Path) -> None:
    files = {path.relative_to(ROOT) for path in (ROOT / "m5ws").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert not [path for path in files if not (installed / path).is_file()]
    assert not list(installed.glob("tests*"))


def test_the_wheel_declares_commands_and_plug_ins(installed: Path) -> None:
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
