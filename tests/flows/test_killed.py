"""A script without a session goes on from its own checkpoints after `kill -9` of its supervisor and itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.records.ledger import AttemptEnded
from m5ws.repository import runs
from m5ws.repository.ledger import ledger
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
    os.kill(int(os.environ["PYTEST_SUPERVISOR"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

moment = "" if MARK.exists() else sys.argv[1]
begun = max(map(load, Path("out").glob("*.pt")), default=0)
if moment == "first":
    die()
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


def _kill(warm: Warm, workspace: Workspace, moment: str) -> str:
    """Run until the script kills its supervisor and itself; return the run's id."""
    assert warm.run("near", workspace.root, "run", "--no-progress", "--", "train.py", moment).killed
    [directory] = (workspace.root / ".m5ws" / "runs").iterdir()
    return directory.name


@pytest.mark.parametrize(("moment", "begun"), [("after", 3), ("within", 2)])
@pytest.mark.parametrize("place", ["here", "in another workspace"])
def test_a_killed_script_goes_on_from_its_last_complete_checkpoint(
    warm: Warm, workspace: Workspace, tmp_path: Path, moment: str, begun: int, place: str
) -> None:
    run = _kill(warm, workspace, moment)
    resumes = workspace
    if place != "here":
        git(tmp_path, "clone", "--quiet", str(workspace.root), str(tmp_path / "another"))
        resumes = Workspace(tmp_path / "another")
    resumes.m5ws("run", "--resume", run)
    resumes.m5ws("outputs", run, str(tmp_path / "results"))
    assert (tmp_path / "results" / "out" / "begun.txt").read_text() == str(begun)
    resumes.m5ws("outputs", run, str(tmp_path / "first"), "--attempt", "1")
    assert {path.name for path in (tmp_path / "first" / "out").iterdir()} == {
        f"{step}.pt" for step in range(1, begun + 1)
    }
    resumes.m5ws("outputs", run, str(tmp_path / "none"), "--attempt", "3", expect=3)
    resumes.m5ws("outputs", run, "--attempt", "1", expect=2)
    shown = resumes.m5ws("show", run).stdout
    assert "outputs-restored" in shown and ("out/3.pt" in shown) == (moment == "within")
    assert resumes.m5ws("fsck", "--read-data").returncode == 0
    repo = Repository.open(open_store(str(tmp_path / "store")))
    assert [*runs.ids(repo)] == [run]
    for attempt, outcome in ((1, "failed"), (2, "finished")):
        ends = [
            event for event in ledger.events(repo, run, attempt, ledger.LAUNCHER) if isinstance(event, AttemptEnded)
        ]
        assert [end.outcome for end in ends] == [outcome]


def test_a_kill_before_the_first_checkpoint_leaves_nothing_to_restore(warm: Warm, workspace: Workspace) -> None:
    run = _kill(warm, workspace, "first")
    refused = workspace.m5ws("run", "--resume", run, expect=2).stderr
    assert "neither a checkpoint nor output files" in refused and "--from-scratch" in refused
    assert workspace.m5ws("fsck").returncode == 0
