"""The work directory of a script: the same path in a run and its replays, with nothing of the checkout above it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from m5ws import workspace as workspaces
from m5ws.launch import child
from m5ws.repository.references import runs
from m5ws.work import directories
from tests.conftest import loud_skip
from tests.support.ranks.forks import ForkLauncher
from tests.support.workspace.checkouts import git
from tests.support.workspace.workspaces import Workspace, make_workspace

_PLACES = """
import json, os, pickle
from pathlib import Path

import torch

here = os.path.abspath("out")
os.makedirs("out/real")
Path("out/real/weights.txt").write_text("1")
os.symlink(os.path.abspath("out/real/weights.txt"), "out/link.txt")
Path("out/place.json").write_text(json.dumps({"output_dir": here, "cwd": os.getcwd(), "PWD": os.environ["PWD"]}))
torch.save({"w": torch.ones(3), "dirpath": here, "file": os.path.abspath(__file__)}, "out/state.pt")
Path("out/place.pkl").write_bytes(pickle.dumps(here))
Path("out", here.replace("/", "_")).write_text(here)
"""
_UPWARDS = """
import json, os
from pathlib import Path

starts = [Path.cwd(), Path(os.environ["PWD"]), Path(os.getcwd()).resolve(), Path(__file__).resolve().parent]
found = [
    str(folder / name)
    for start in starts
    for folder in (start, *start.parents)
    for name in (".git", "local.env", "m5ws.toml", "above.toml")
    if (folder / name).exists()
]
assert "OLDPWD" not in os.environ
os.makedirs("out", exist_ok=True)
Path("out/found.json").write_text(json.dumps(found))
"""
_TWICE = """
import os
from pathlib import Path

os.makedirs("out", exist_ok=True)
with open("out/places.txt", "a") as places:
    places.write(os.getcwd() + "\\n")
raise SystemExit(9 if len(Path("out/places.txt").read_text().split()) == 1 else 0)
"""


@pytest.fixture(params=["mounted", pytest.param("not mounted", marks=pytest.mark.long)])
def mounted(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> bool:
    """Return True if processes can see a folder under a path of their own here. Other tests' runs take no number."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    if request.param == "not mounted":
        monkeypatch.setattr(ForkLauncher, "can_mount", lambda *_: False)
    elif not child.can_mount(str(tmp_path / "one"), str(tmp_path / "other")):
        loud_skip("no mount namespaces: needs the rights of root")
    return bool(request.param == "mounted")


def _workspace(root: Path, script: str) -> Workspace:
    made = make_workspace(root, "plain.py", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text(script)
    return made


def _outputs(workspace: Workspace, run: str, to: Path) -> Any:
    workspace.m5ws("outputs", run, str(to))
    return json.loads(next(to.rglob("*.json")).read_text())


@contextmanager
def _at_the_same_time(workspace: Workspace, run: str, folder: Path) -> Iterator[None]:
    """Keep another attempt of a run, or of its replays, running."""
    (folder / "attempt").mkdir(parents=True)
    root = workspaces.find(workspace.root).work_root
    directory = directories.make(root, folder / "attempt", run, workspace.root, lambda *_: False)
    yield
    assert not any(directory.path.iterdir())
    directories.remove(folder / "attempt")


def test_a_script_finds_no_file_of_the_checkout_in_its_parent_folders(tmp_path: Path, mounted: bool) -> None:
    workspace = _workspace(tmp_path / "w", _UPWARDS)
    (workspace.root / "local.env").write_text("SCALE=2\n")
    with (workspace.root / ".gitignore").open("a") as ignored:
        ignored.write("local.env\n")
    (tmp_path / "above.toml").write_text("")
    run = workspace.m5ws(
        "run", "--no-progress", environment={"PWD": str(workspace.root), "OLDPWD": str(workspace.root)}
    ).stdout.strip()
    facts = _outputs(workspace, run, tmp_path / "found")
    # The snapshot's copy lies beside the script.
    assert facts and {Path(path).name for path in facts} == {"m5ws.toml"}
    assert not any(Path(path).is_relative_to(tmp_path) for path in facts)
    (workspace.root / "local.env").write_text("SCALE=3\n")
    assert workspace.json("reproduce", run)["outcome"] == "reproduced"


def test_a_run_and_its_replay_have_the_same_work_directory(tmp_path: Path, mounted: bool) -> None:
    workspace = _workspace(tmp_path / "w", _PLACES)
    workspace.edit("m5ws.toml", "[run]", "[run]\nkeep_work = true")
    run = workspace.train()
    verdict = workspace.json("reproduce", run)
    assert (verdict["outcome"], {item["status"] for item in verdict["items"]}) == ("reproduced", {"equal"})
    place = _outputs(workspace, run, tmp_path / "found")
    assert set(place.values()) == {place["cwd"], place["output_dir"]} and place["PWD"] == place["cwd"]
    assert _numbers(place["cwd"]) == ("0" * 16 if mounted else f"00{run}01")
    # A link by an absolute path is a result, like its target.
    assert (tmp_path / "found" / "out" / "link.txt").read_text() == "1"
    left = workspace.root / ".m5ws" / "runs" / run / "0001" / "work"
    assert (left / "out" / "link.txt").read_text() == "1" and not (left / "train.py").exists()


def _numbers(path: str) -> str:
    return Path(path).parent.name.removeprefix("m5ws-")


def test_parallel_replays_share_a_path_only_if_work_directories_are_mounted(tmp_path: Path, mounted: bool) -> None:
    workspace = _workspace(tmp_path / "w", _PLACES)
    run = workspace.train()
    with _at_the_same_time(workspace, run, tmp_path / "other"):
        verdict = workspace.json("reproduce", run)
    # The script's tensors are judged. Files that contain its path are listed.
    assert verdict["outcome"] == "reproduced" and verdict["compared"]["files"] == (6 if mounted else 2), verdict
    assert all(item["status"] == "equal" for item in verdict["items"]) is mounted
    places = [_outputs(workspace, name, tmp_path / name)["cwd"] for name in (run, verdict["replay"])]
    assert len(places[0]) == len(places[1]) and (places[0] == places[1]) is mounted


def test_a_replay_in_another_workspace_of_the_store_has_the_same_path(tmp_path: Path, mounted: bool) -> None:
    first = _workspace(tmp_path / "a", _PLACES)
    with (first.root / "m5ws.toml").open("a") as settings:
        settings.write(f'\n[store]\nurl = "{tmp_path / "store"}"\n')
    git(first.root, "add", "--all")
    git(first.root, "commit", "--quiet", "--message", "all")
    git(tmp_path, "clone", "--quiet", str(first.root), str(tmp_path / "b"))
    run = first.train()
    verdict = Workspace(tmp_path / "b").json("reproduce", run)
    assert (verdict["outcome"], verdict["compared"]["files"]) == ("reproduced", 6)


def test_a_resumed_attempt_has_the_work_directory_of_the_first_attempt(tmp_path: Path, mounted: bool) -> None:
    workspace = _workspace(tmp_path / "w", _TWICE)
    run = workspace.m5ws("run", "--no-progress", expect=1).stdout.strip()
    with _at_the_same_time(workspace, runs.new_id(), tmp_path / "other"):
        workspace.m5ws("resume", run)
    workspace.m5ws("outputs", run, str(tmp_path / "found"))
    places = (tmp_path / "found" / "out" / "places.txt").read_text().split()
    assert len(places) == 2 and places[0] == places[1]
