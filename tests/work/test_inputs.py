"""Inputs after an attempt: only inputs that are unchanged and in their own place are removed."""

import os
from pathlib import Path

import pytest

from m5ws.work import inputs


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("train.py", "data/a", "data/deep/b"):
        (folder / name).write_text(name)
    return folder


def test_unchanged_inputs_are_removed_and_written_files_stay(work: Path) -> None:
    given = inputs.stamps(work)
    (work / "out").write_text("result")
    (work / "data" / "a").write_text("changed")
    assert inputs.modified(work, given) == ["data/a"]
    inputs.remove(work, given)
    assert sorted(str(path.relative_to(work)) for path in work.rglob("*")) == ["data", "data/a", "out"]


def test_a_folder_that_was_moved_out_and_linked_back_is_left_alone(work: Path, tmp_path: Path) -> None:
    given = inputs.stamps(work)
    (work / "data").rename(tmp_path / "kept")
    (work / "data").symlink_to(tmp_path / "kept")
    assert sorted(inputs.modified(work, given)) == ["data/a", "data/deep/b"]
    inputs.remove(work, given)
    assert (tmp_path / "kept" / "a").read_text() == "data/a"


def test_any_change_of_inputs_by_a_script_is_no_error(work: Path) -> None:
    odd = os.fsencode(work) + b"/data/\xff"
    Path(os.fsdecode(odd)).write_text("odd")
    given = inputs.stamps(work)
    for path in sorted((work / "data").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (work / "data").rmdir()
    (work / "data").write_text("a file now")
    assert sorted(inputs.modified(work, given)) == ["data/\\xff", "data/a", "data/deep/b"]
    inputs.remove(work, given)
    assert [path.name for path in work.iterdir()] == ["data"]
