"""`reproduce --env rebuild`: the environment of a run is rebuilt, and the replay runs in it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from m5ws.environment import recorded
from m5ws.environment.observe import own_package
from m5ws.records.environment import Observed
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from tests.support.files import wheels
from tests.support.workspace.checkouts import commit_all, write

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


class Place(msgspec.Struct, frozen=True):
    """A workspace with a script without m5ws, and the interpreter of m5ws."""

    root: Path
    python: str
    environment: dict[str, str]

    def m5ws(
        self, *words: str, expect: int = 0, added: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [self.python, "-P", "-m", "m5ws", "-C", str(self.root), *words],
            capture_output=True,
            text=True,
            env=self.environment | dict(added or {}),
            timeout=600,
        )
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.root.rglob("logs/*.log")))
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}"
        return done

    def observed(self, run: str) -> Observed:
        repo = Repository.open(open_store(str(self.root / ".m5ws" / "store")))
        return recorded.of_run(repo, run)


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


def test_a_replay_with_env_rebuild_runs_with_the_pinned_distributions(trained: Trained) -> None:
    here, run = trained.here, trained.run
    wheels.install(trained.python, trained.links, "greeting==2.0")
    refused = here.m5ws("reproduce", run, expect=2)
    assert "distribution.greeting" in refused.stderr and "`--env rebuild`" in refused.stderr

    again = here.m5ws("reproduce", run, "--env", "rebuild", "--json")
    verdict = json.loads(again.stdout)
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["files"] == 1
    assert "environment: rebuilt" in again.stderr
    before, after = here.observed(run), here.observed(verdict["replay"])
    assert after.distributions == before.distributions and after.distributions["greeting"] == "1.0"
    assert [change["name"] for change in verdict["changes"]] == ["rebuilt"]
    assert (after.facts["rebuilt"] or "").startswith("virtual environment ")


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
