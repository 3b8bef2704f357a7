"""`reproduce --env rebuild`: the environment of a run is rebuilt, and the replay runs in it."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from m5ws.environment.observe import own_package
from tests.support.files import wheels
from tests.support.workspace.checkouts import commit_all, write
from tests.support.workspace.places import Place

pytestmark = pytest.mark.services

_SCRIPT = """
import os, pathlib
import greeting
if os.environ.get("RANK", "0") == "0":
    pathlib.Path("out").mkdir(exist_ok=True)
    pathlib.Path("out/said.txt").write_text(greeting.TEXT)
"""
_SETTINGS = "[run]\ncommand = ['train.py']\noutputs = ['out']\n[mlflow]\nenabled = false\n"
_NEEDED = ("torch", "numpy", "blake3", "click", "msgspec", "pathspec", "rich", "ruamel.yaml", "tomlkit")


def place(folder: Path, python: str, own: Path, settings: str = _SETTINGS, links: Path | None = None) -> Place:
    root = folder / "workspace"
    write(root, {"m5ws.toml": settings, "train.py": _SCRIPT, ".gitignore": ".m5ws/\n"})
    commit_all(root)
    kept = wheels.only(links or folder) | {"XDG_CACHE_HOME": str(folder / "cache")}
    return Place(root, python, kept | ({"PYTHONPATH": str(own)} if python == sys.executable else {}))


class Trained(msgspec.Struct, frozen=True):
    """A run and its virtual environment, whose distributions come from the folder `links`."""

    here: Place
    run: str
    python: Path
    links: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a run that prints the text of the distribution `greeting` 1.0; version 2.0 is available too."""
    folder = tmp_path_factory.mktemp("rebuild")
    links = folder / "links"
    own = own_package.copy(folder / "own")
    pinned = wheels.borrowed(links, folder / "shelf", *_NEEDED)
    wheels.wheel(links, "m5ws", "0.1.0", {"m5ws_here.pth": f"{own}\n"})
    for version in ("1.0", "2.0"):
        wheels.wheel(links, "greeting", version, {"greeting.py": f"TEXT = 'hello of {version}'\n"})
    python = wheels.environment(folder / "venv", links, *pinned, "m5ws==0.1.0", "greeting==1.0")
    here = place(folder, str(python), own, links=links)
    return Trained(here, here.m5ws("run", "--no-progress").stdout.strip(), python, links)


@pytest.mark.soak
def test_bisect_names_the_distribution_that_causes_the_difference(trained: Trained) -> None:
    here = trained.here
    wheels.install(trained.python, trained.links, "greeting==2.0")
    (here.root / "notes.py").write_text("NOTE = 'second'\n")
    bad = here.m5ws("run", "--no-progress").stdout.strip()
    report = json.loads(here.m5ws("bisect", trained.run, bad, "--env", "rebuild", "--json", "--no-progress").stdout)
    assert report["causes"] == [["environment distribution.greeting"]] and report["enough"]
    assert {tuple(trial["taken"]): trial["answer"] for trial in report["trials"]} == {
        (): "same",
        ("environment distribution.greeting",): "differs",
        ("code notes.py",): "same",
    }
