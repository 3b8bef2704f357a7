"""A script without a session goes on from its own files after `kill -9` of its supervisor and itself.

Damage of the killed run's directory stops no other command.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from m5ws.agent import run_lock
from m5ws.records.ledger import NODE, AttemptEnded
from m5ws.repository.ledger import ledger
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.store import open_store
from tests.support.paths import ROOT
from tests.support.ranks.warm import Warm
from tests.support.workspace.checkouts import commit_all, git
from tests.support.workspace.workspaces import Workspace, make_workspace

_SCRIPT = """
import os, signal, sys, zipfile
from pathlib import Path

MARK = Path("@MARK@")

def save(path, step):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step", str(step))

def load(path):
    with zipfile.ZipFile(path) as archive:
        return int(archive.read("step"))

def die():
    MARK.touch()
    if os.environ["PYTEST_SUPERVISOR"] != "@":
        os.kill(int(os.environ["PYTEST_SUPERVISOR"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

moment = "" if MARK.exists() else sys.argv[1]
begun = max(map(load, Path("out").glob("*.pt")), default=0)
for step in range(begun + 1, 6):
    path = Path(f"out/{step}.pt")
    save(path, step)
    if step == 3 and moment == "within":
        path.write_bytes(path.read_bytes()[:40])
    if step == 3 and moment:
        die()
Path("out/begun.txt").write_text(str(begun))
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKS_USE_DEEPSPEED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        with Warm(Path(__file__).parent / "scripts" / "elsewhere.py") as started:
            yield started


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = make_workspace(tmp_path / "w", "plain.py", trainer="python", nproc=1, run='outputs = ["out"]')
    (made.root / "train.py").write_text(_SCRIPT.replace("@MARK@", str(tmp_path / "mark")))
    with open(made.root / "m5ws.toml", "a", encoding="utf-8") as settings:
        settings.write(f'\n[store]\nurl = "{tmp_path / "store"}"\n')
    commit_all(made.root)
    return made


def _kill(warm: Warm, workspace: Workspace, moment: str, other: str = "") -> str:
    """Run until the script kills its supervisor and itself; return the run's id, which is not `other`."""
    assert warm.run("near", workspace.root, "run", "--no-progress", "--", "train.py", moment).killed
    [name] = {directory.name for directory in (workspace.root / ".m5ws" / "runs").iterdir()} - {other}
    return name


@pytest.mark.parametrize(("moment", "place"), [("after", "in another workspace"), ("within", "here")])
def test_a_killed_script_finds_the_files_that_plain_python_finds(
    warm: Warm, workspace: Workspace, tmp_path: Path, moment: str, place: str
) -> None:
    run = _kill(warm, workspace, moment)
    resumes = workspace
    if place != "here":
        git(tmp_path, "clone", "--quiet", str(workspace.root), str(tmp_path / "another"))
        resumes = Workspace(tmp_path / "another")
    # Half a file: the script fails, as it would without m5ws.
    failed = resumes.m5ws("resume", run, expect=1 if moment == "within" else 0).stderr
    assert ("0001-0-final" in failed and "--at TIME" in failed) == (moment == "within")
    assert (moment == "within") == ("BadZipFile" in failed)
    resumes.m5ws("outputs", run, str(tmp_path / "first"), "--attempt", "1")
    plain = tmp_path / "plain"
    (plain / "out").mkdir(parents=True)
    (tmp_path / "mark").unlink()
    command = [sys.executable, str(workspace.root / "train.py"), moment]
    environment = os.environ | {"PYTEST_SUPERVISOR": "@"}
    assert subprocess.run(command, cwd=plain, env=environment, check=False, capture_output=True).returncode
    names = {path.name for path in (plain / "out").iterdir()}
    assert names == {path.name for path in (tmp_path / "first" / "out").iterdir()} == {"1.pt", "2.pt", "3.pt"}
    assert _load(plain / "out") == _load(tmp_path / "first" / "out")
    resumes.m5ws("outputs", run, str(tmp_path / "none"), "--attempt", "3", expect=3)
    resumes.m5ws("outputs", run, "--attempt", "1", expect=2)
    assert "outputs-restored" in resumes.m5ws("show", run).stdout
    assert resumes.m5ws("fsck", "--read-data").returncode == 0
    repo = Repository.open(open_store(str(tmp_path / "store")))
    assert [*runs.ids(repo)] == [run]
    for attempt, outcome in ((1, "failed"), (2, "finished" if moment == "after" else "failed")):
        ends = [event for event in ledger.events(repo, run, attempt, NODE) if isinstance(event, AttemptEnded)]
        assert [end.outcome for end in ends] == [outcome]


def _load(folder: Path) -> list[int]:
    """Return the sizes of files. The times in their zip headers differ."""
    return [path.stat().st_size for path in sorted(folder.iterdir())]


_DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(b"\xff\x81garbage" * 9),
    "missing": lambda path: None,
    "a folder": lambda path: (path / "x").mkdir(parents=True),
    "unreadable": lambda path: path.symlink_to(path.name),
}


def test_damage_of_a_runs_directory_stops_no_other_command(warm: Warm, workspace: Workspace) -> None:
    """Each file is damaged alone in each way, and all files together."""
    script = (workspace.root / "train.py").read_text()
    (workspace.root / "train.py").write_text("open('out/x', 'w').write('1')\n")
    other = workspace.m5ws("run", "--no-progress").stdout.strip()
    (workspace.root / "train.py").write_text(script)
    killed = _kill(warm, workspace, "after", other)
    home, store = workspace.root / ".m5ws" / "runs" / killed, workspace.root.parent / "store"
    saved = {home: workspace.root.parent / "home", store: workspace.root.parent / "before"}
    for folder, copy in saved.items():
        shutil.copytree(folder, copy, symlinks=True)
    names = [path.relative_to(saved[home]) for path in saved[home].rglob("*") if path.is_file()]
    names = [name for name in names if "work" not in name.parts]
    assert len(names) >= 8
    warned = set[str]()
    for kind, damaged in itertools.product(_DAMAGE, [*([name] for name in names), names]):
        for folder, copy in saved.items():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder, symlinks=True)
        run_lock.mark_directory(home / "0001")
        for name in damaged:
            if kind in ("missing", "a folder", "unreadable"):
                (home / name).unlink()
            _DAMAGE[kind](home / name)
        warnings = [line for line in workspace.m5ws("ls").stderr.splitlines() if "be delivered" in line]
        assert all(killed in line for line in warnings)
        warned |= {kind} if warnings else set()
    assert warned >= {"garbage", "a folder", "unreadable"}
    workspace.m5ws("show", other)
    (workspace.root / "train.py").write_text("open('out/x', 'w').write('2')\n")
    workspace.m5ws("run", "--no-progress")
    for copy in saved.values():  # Its logs would count as a launch.
        shutil.rmtree(copy)
