"""A killed and resumed run equals an uninterrupted run, bit for bit; an inexact resume is detected."""

import os
import signal
from pathlib import Path

import pytest

from m5ws.records.ledger import RankStarted, Step
from m5ws.repository.ledger.ledger import decode_event
from m5ws.repository.ledger.spool import SpoolReader
from tests.support.records.histories import assert_equal
from tests.support.waiting import is_alive, wait_for
from tests.support.workspace.workspaces import Workspace, make_forgetful, make_workspace

_TIMEOUT_S = 120


def _wait_for_step(workspace: Workspace, run: str, wanted: int) -> dict[str, int]:
    """Wait until rank 0 has recorded a step, and return the ranks' process ids."""
    attempt = max((workspace.root / ".m5ws" / "runs" / run).glob("[0-9]*"))
    pids: dict[str, int] = {}
    readers: dict[str, SpoolReader] = {}

    def is_recorded() -> bool:
        for path in (attempt / "spool").glob("[0-9]*.spool"):
            for event in map(decode_event, readers.setdefault(path.stem, SpoolReader(path)).read()):
                if isinstance(event, RankStarted):
                    pids[path.stem] = event.pid
                if isinstance(event, Step) and path.stem == "0" and event.step >= wanted:
                    return True
        return False

    wait_for(is_recorded)
    return pids


def _started(workspace: Workspace, known: set[str]) -> str:
    """Wait for a run that is not in `known`, and return its id."""
    folder = workspace.root / ".m5ws" / "runs"
    return wait_for(
        lambda: next((run for run in _known(workspace) - known if [*(folder / run).glob("[0-9]*/spool")]), None)
    )


def _known(workspace: Workspace) -> set[str]:
    folder = workspace.root / ".m5ws" / "runs"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _run_and_kill(workspace: Workspace, step: int, whom: str) -> str:
    """Start a run, kill -9 a rank or m5ws after `step` of rank 0 and the first checkpoint; return the run's id."""
    known = _known(workspace)
    process = workspace.start("run", "--no-progress")
    run = _started(workspace, known)
    pids = _wait_for_step(workspace, run, step)
    wait_for(lambda: workspace.history(run).contents)
    os.kill(process.pid if whom == "m5ws" else pids[whom], signal.SIGKILL)
    process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode != 0
    wait_for(lambda: not any(map(is_alive, pids.values())))
    return run


@pytest.fixture(scope="module")
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, str]:
    """Return a workspace with one undisturbed run on 3 processes."""
    trainer = "torchrun" if request.param == "fsdp" else "deepspeed"
    workspace = make_workspace(
        tmp_path_factory.mktemp(request.param) / "w", f"{request.param}.py", trainer=trainer, nproc=3
    )
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.3")
    return workspace, workspace.train()


# Each way of training, and each process that may die; every pair is tested by `make soak`.
_KILLS = [("fsdp", 7, "m5ws")]
_OTHER_KILLS = [("fsdp", 5, "1"), ("fsdp", 9, "0"), ("zero", 5, "1"), ("zero", 7, "m5ws"), ("zero", 9, "0")]


@pytest.mark.parametrize(
    ("unbroken", "step", "whom"),
    [
        *(pytest.param(*kill, marks=pytest.mark.long) for kill in _KILLS),
        *(pytest.param(*kill, marks=pytest.mark.soak) for kill in _OTHER_KILLS),
    ],
    indirect=["unbroken"],
)
def test_a_killed_run_resumes_to_the_same_bits(unbroken: tuple[Workspace, str], step: int, whom: str) -> None:
    workspace, reference = unbroken
    run = _run_and_kill(workspace, step, whom)
    workspace.m5ws("resume", run)
    history = workspace.history(run)
    assert_equal(workspace.history(reference), history)
    assert history.attempt == 2
    assert [notice for notice in history.notices if notice.kind == "inexact-resume"] == []
    assert workspace.m5ws("fsck").returncode == 0


_DIES_PUBLISHED = """
import os, signal
from m5ws.repository.references import checkpoints
_publish = checkpoints.publish
def publish(repo, checkpoint, began=None):
    digest = _publish(repo, checkpoint, began)
    if checkpoint.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return digest
checkpoints.publish = publish
"""


def test_a_checkpoint_is_linked_if_its_rank_is_killed_after_publication(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("train.py", "\nimport m5ws\n", f"\nimport m5ws\n{_DIES_PUBLISHED}")
    workspace.m5ws("run", expect=1)
    [run] = _known(workspace)
    history = workspace.history(run)
    assert (sorted(history.contents), history.outcome) == ([4], "failed")
    workspace.m5ws("resume", run)
    history = workspace.history(run)
    assert (sorted(history.contents), history.begun) == ([4, 8, 10], [(0, 1), (4, 2)])


def test_an_inexact_resume_is_detected_and_ends_the_attempt_if_the_settings_ask_for_it(tmp_path: Path) -> None:
    workspace = make_forgetful(tmp_path / "w")
    mark, waited = tmp_path / "mark", tmp_path / "waited"
    dies = f"""
    if step.number == 7 and not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, "w").close()
        os.kill(os.getpid(), 9)
    if step.number == 8 and not os.path.exists({str(waited)!r}):
        open({str(waited)!r}, "w").close()
        time.sleep({_TIMEOUT_S})
    """
    workspace.edit("train.py", 'time.sleep(settings["pause_s"])', dies.strip())
    workspace.edit("train.py", "import time\n", "import os\nimport time\n")
    settings = workspace.root / "m5ws.toml"
    warns = f"{settings.read_text()}\n[checkpoint]\nasynchronous = false\n"
    settings.write_text(warns)
    workspace.m5ws("run", expect=1)
    [run] = _known(workspace)
    settings.write_text(warns.replace("[run]\n", '[run]\ninexact = "stop"\n'))
    stopped = workspace.m5ws("resume", run, expect=1)
    assert f"error: run {run} failed: the resume was not exact: step 5 on rank 0: " in stopped.stderr
    assert "hint: With [run] inexact" in stopped.stderr
    assert sorted(workspace.history(run).contents) == [4]  # No rank saved a last checkpoint.
    settings.write_text(warns)
    workspace.m5ws("resume", run)
    notices = [notice for notice in workspace.history(run).notices if notice.kind == "inexact-resume"]
    assert notices[0].step == 5 and "step 5 on rank 0: " in notices[0].message
    assert "finished, step 10 of 10, after an inexact resume (step 5)" in workspace.m5ws("show", run).stdout
    assert "finished, inexact" in workspace.m5ws("ls").stdout


def test_a_live_run_cannot_be_resumed_and_ctrl_c_keeps_its_checkpoints(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", "fsdp.py", nproc=1)
    workspace.edit("config.yaml", "pause_s: 0.0", "pause_s: 0.2")
    held = tmp_path / "held"
    held.touch()
    wait = f"while step.number == 6 and os.path.exists({str(held)!r}):\n        time.sleep(0.05)\n    "
    workspace.edit("train.py", 'time.sleep(settings["pause_s"])', wait + 'time.sleep(settings["pause_s"])')
    workspace.edit("train.py", "import time\n", "import os\nimport time\n")
    process = workspace.start("run", "--no-progress")
    run = _started(workspace, set())
    _wait_for_step(workspace, run, 5)
    wait_for(lambda: workspace.history(run).contents)
    busy = workspace.m5ws("resume", run, expect=2)
    assert "is running" in busy.stderr
    held.unlink()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 130, output
    assert workspace.m5ws("fsck").returncode == 0
    assert 4 in workspace.history(run).contents and workspace.history(run).outcome == "interrupted"
    workspace.m5ws("resume", run)
    assert workspace.history(run).last_step == 10
