"""Files in work directories of ended attempts: removed if the store has them, kept otherwise, also after kills."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.agent import run_lock, work_files
from m5ws.agent.delivery import DELIVERED
from m5ws.outputs import storing
from m5ws.outputs.collect import Outputs
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.work import directories, inputs
from tests.support.records import planted
from tests.support.workspace.checkouts import write

_RUN = "a" * 12
_STORED = {"out/model.bin": "weights" * 1000, "out/empty": "", "out/metrics.json": "{}"}
_OTHERS = {"notes.txt": "written beside", "out/late.txt": "written after the end"}


@pytest.fixture
def directory(repo: Repository, tmp_path: Path) -> Path:
    """The directory of a delivered attempt: stored outputs with a link among them, inputs, and files of nobody."""
    code = planted.tree(repo, tmp_path / "code", {"train.py": "print(1)\n", "data/a.txt": "a"})
    spec = LaunchSpec(command=("train.py",), outputs=("out",))
    run = planted.run(repo, _RUN, planted.publish(repo, planted.snapshot(code)), spec=spec)
    planted.begin(repo, _RUN)
    directory = tmp_path / "home" / "runs" / _RUN / "0001"
    work = directory / "work"
    write(work, {**_STORED, "train.py": "print(1)\n", "data/a.txt": "changed"})
    (work / "out" / "last.bin").symlink_to("model.bin")
    _store(repo, run, work, [*_STORED, "out/last.bin"])
    write(work, _OTHERS)
    (directory / DELIVERED).touch()
    return directory


def _store(repo: Repository, run: Run, work: Path, names: list[str]) -> None:
    files = [SourceFile(path=name.encode(), location=os.path.realpath(work / name)) for name in names]
    storing.publish(repo, run, 1, Outputs(files=tuple(files)))


def _left(directory: Path) -> set[str]:
    work = directory / "work"
    return {str(path.relative_to(work)) for path in work.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_only_stored_output_files_of_an_attempt_are_removed(repo: Repository, directory: Path) -> None:
    (directory / "work" / "out" / "metrics.json").write_text("[]")  # changed since
    removed = work_files.remove_outputs(repo, _RUN, 1, directory)
    assert (removed.files, removed.left) == (3, 5)
    assert _left(directory) == {"out/metrics.json", "train.py", "data/a.txt", *_OTHERS}


def test_unchanged_inputs_of_old_attempts_are_removed(repo: Repository, directory: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = _left(directory)
    planned = work_files.remove_old(repo, home, 0.0, dry_run=True)
    assert planned.files == 5 and _left(directory) == before
    assert work_files.remove_old(repo, home, 3600.0) == work_files.RemovedFiles()
    assert work_files.remove_old(repo, home, 0.0) == planned
    assert _left(directory) == {"data/a.txt", *_OTHERS}


def test_an_agent_removes_inputs_alone_and_only_unchanged_inputs(directory: Path, tmp_path: Path) -> None:
    work, home = directory / "work", tmp_path / "home"
    known = {path: known for path, known in inputs.stamps(work).items() if path.name in ("train.py", "a.txt")}
    inputs.save(directory, work, inputs.AttemptInputs(begun_ns=0, stamps=known))
    (work / "data" / "a.txt").write_text("changed by the script")
    before = _left(directory)
    with run_lock.lock_run(directory.parent):
        work_files.remove_inputs(home)
    assert _left(directory) == before
    work_files.remove_inputs(home)
    assert _left(directory) == before - {"train.py"}


def test_a_live_or_undelivered_attempt_keeps_all_files(repo: Repository, directory: Path, tmp_path: Path) -> None:
    before = _left(directory)
    with run_lock.lock_run(directory.parent):
        work_files.remove_old(repo, tmp_path / "home", 0.0)
    (directory / DELIVERED).unlink()
    work_files.remove_old(repo, tmp_path / "home", 0.0)
    assert _left(directory) == before


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_empty_work_directory_is_removed_on_any_file_system(
    repo: Repository, directory: Path, tmp_path: Path, is_elsewhere: bool
) -> None:
    work = directory / "work"
    for name in (*_OTHERS, "data/a.txt"):
        (work / name).unlink()
    home = tmp_path / "state" / "m5ws-ffff000000000001"
    if is_elsewhere:
        home.mkdir(parents=True)
        (home / directories._ATTEMPT).write_bytes(os.fsencode(os.path.realpath(directory)))
        work.rename(home / "work")
        work.symlink_to(home / "work")
    work_files.remove_old(repo, tmp_path / "home", 0.0)
    assert not work.is_symlink() and not work.exists() and not home.exists()


def test_a_kill_during_the_removal_leaves_all_files_that_are_not_stored(
    repo: Repository, directory: Path, tmp_path: Path
) -> None:
    for moment in range(1, 6):
        status = _killed_at(moment, lambda: work_files.remove_old(repo, tmp_path / "home", 0.0))
        assert status in (0, 9)
        assert {"data/a.txt", *_OTHERS} <= _left(directory)
    work_files.remove_old(repo, tmp_path / "home", 0.0)
    assert _left(directory) == {"data/a.txt", *_OTHERS}


def _killed_at(moment: int, act: Callable[[], object]) -> int:
    """Return the exit status of a fork that acts, and is killed before it removes its `moment`-th file."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    unlink, count = Path.unlink, 0

    def unlink_or_die(path: Path, missing_ok: bool = False) -> None:
        nonlocal count
        count += 1
        if count == moment:
            os._exit(9)
        unlink(path, missing_ok)

    Path.unlink = unlink_or_die  # type: ignore[assignment, method-assign]
    act()
    os._exit(0)
