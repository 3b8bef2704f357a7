"""Work directories: their owners, their numbers, and their removal."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.errors import UsageError
from m5ws.work import directories
from m5ws.work.directories import WorkDirectory
from tests.conftest import loud_skip

_RUN, _OTHER = "00000000000a", "ffffffffffff"


def _make(folder: Path, attempt: str, run: str = _RUN, *, mounts: bool = False) -> WorkDirectory:
    (folder / attempt).mkdir(parents=True)
    (folder / "checkout").mkdir(exist_ok=True)
    return directories.make(folder / "root", folder / attempt, run, folder / "checkout", lambda *_: mounts)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[None]:
    """Let the folder for work directories be on another file system."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        loud_skip("another file system: there is no /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        (tmp_path / "root").symlink_to(folder)
        yield


def _number(path: Path) -> str:
    return path.parent.name.removeprefix("m5ws-").lstrip("0")


def test_a_path_is_reused_by_a_run_but_never_by_two_live_attempts(tmp_path: Path) -> None:
    one, two, other = _make(tmp_path, "a"), _make(tmp_path, "b"), _make(tmp_path, "d", _OTHER)
    assert (_number(one.path), _number(two.path), _number(other.path)) == ("a01", "a02", "ffffffffffff01")
    assert len(str(one.path)) == len(str(two.path)) == len(str(other.path))
    (one.path / "kept.txt").write_text("a")
    assert (tmp_path / "a" / "work" / "kept.txt").read_text() == "a"
    directories.end(tmp_path / "a")
    three = _make(tmp_path, "c")
    assert three.path == one.path and not any(three.path.iterdir())
    directories.end(tmp_path / "a")
    left = tmp_path / "a" / "work"
    assert not left.is_symlink() and (left / "kept.txt").read_text() == "a"


@pytest.mark.usefixtures("elsewhere")
def test_files_on_another_file_system_stay_in_place_after_the_end(tmp_path: Path) -> None:
    one = _make(tmp_path, "a")
    (one.path / "kept.txt").write_text("a")
    for _ in range(2):
        directories.end(tmp_path / "a")
        assert (tmp_path / "a" / "work" / "kept.txt").read_text() == "a"
    assert _make(tmp_path, "b").path == one.path
    directories.remove(tmp_path / "a")
    assert not (tmp_path / "a" / "work").is_symlink()


@pytest.mark.parametrize("moved", [True, False])
def test_a_second_end_completes_a_killed_end(tmp_path: Path, moved: bool) -> None:
    """Between any two steps of `end`."""
    one = _make(tmp_path, "a")
    (one.path / "kept.txt").write_text("a")
    one.path.rename(tmp_path / "a" / ".work")
    if moved:
        directories.remove(tmp_path / "a")
    directories.end(tmp_path / "a")
    assert (tmp_path / "a" / "work" / "kept.txt").read_text() == "a"
    assert not one.path.parent.exists()


@pytest.mark.parametrize("killed_after", ["nothing", "the work directory", "one file"])
def test_files_that_a_script_wrote_beside_its_work_directory_are_kept(tmp_path: Path, killed_after: str) -> None:
    one, attempt = _make(tmp_path, "a"), tmp_path / "a"
    for name in ("results", "more"):
        (one.path / ".." / name).mkdir()
        (one.path / ".." / name / "last.pt").write_text(name)
    named = [attempt / "beside" / name for name in ("more", "results")]
    assert directories.beside(attempt) == named
    if killed_after != "nothing":
        one.path.rename(attempt / ".work")
    if killed_after == "one file":
        (attempt / "beside").mkdir()
        (one.path.parent / "more").rename(attempt / "beside" / "more")
    directories.end(attempt)
    assert directories.beside(attempt) == named
    assert [(path / "last.pt").read_text() for path in named] == ["more", "results"]
    assert not one.path.parent.exists() and (attempt / "work").is_dir()


@pytest.mark.parametrize("when", ["running", "ended"])
def test_a_link_in_place_of_a_work_directory_is_not_followed(tmp_path: Path, when: str) -> None:
    one, attempt, own = _make(tmp_path, "a"), tmp_path / "a", tmp_path / "of the user"
    assert directories.folder_of(attempt) == one.path
    own.mkdir()
    one.path.rmdir()
    one.path.symlink_to(own)
    if when == "ended":
        directories.end(attempt)
    assert directories.folder_of(attempt) is None
    directories.remove(attempt)
    assert own.is_dir()


def test_a_second_end_completes_a_killed_removal_of_the_folder(tmp_path: Path) -> None:
    one, attempt = _make(tmp_path, "a"), tmp_path / "a"
    (one.path / "kept.txt").write_text("a")
    one.path.rename(attempt / ".work")
    shutil.rmtree(one.path.parent)
    directories.end(attempt)
    assert (attempt / "work" / "kept.txt").read_text() == "a" and directories.folder_of(attempt) is not None


@pytest.mark.usefixtures("elsewhere")
def test_files_beside_a_work_directory_are_moved_across_file_systems(tmp_path: Path) -> None:
    one = _make(tmp_path, "a")
    (one.path.parent / "last.pt").write_text("a")
    directories.end(tmp_path / "a")
    (kept,) = directories.beside(tmp_path / "a")
    assert kept == tmp_path / "a" / "beside" / "last.pt" and kept.read_text() == "a"
    directories.remove(tmp_path / "a")
    assert not (tmp_path / "a" / "work").is_symlink() and kept.exists()


def test_attempts_with_mounts_share_one_path(tmp_path: Path) -> None:
    one, two = _make(tmp_path, "a", mounts=True), _make(tmp_path, "b", mounts=True)
    assert one.seen == two.seen and one.path != two.path
    assert one.mount == (str(one.path.parent), str(one.seen.parent)) and _make(tmp_path, "c").mount is None


def test_the_end_of_a_missing_work_directory_leaves_no_folder_and_no_link(tmp_path: Path) -> None:
    made = _make(tmp_path, "a")
    made.path.rmdir()
    directories.end(tmp_path / "a")
    assert not made.path.parent.exists() and not (tmp_path / "a" / "work").is_symlink()


def test_a_copied_attempt_does_not_own_the_work_directory(tmp_path: Path) -> None:
    made = _make(tmp_path, "a")
    (made.path / "kept.txt").write_text("a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy", symlinks=True)
    directories.end(tmp_path / "copy")
    directories.remove(tmp_path / "copy")
    assert (made.path / "kept.txt").read_text() == "a"
    directories.remove(tmp_path / "a")
    assert not made.path.parent.exists()


def test_the_work_root_must_be_private_and_outside_the_checkout(tmp_path: Path) -> None:
    _make(tmp_path, "a")
    root = tmp_path / "root"
    assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o755)
    with pytest.raises(UsageError, match="not private") as refused:
        _make(tmp_path, "b")
    assert "chmod 700" in str(refused.value.hint)
    (root / "of another program").mkdir()
    with pytest.raises(UsageError, match="not private") as refused:
        _make(tmp_path, "c")
    assert "chmod" not in str(refused.value.hint)
    (tmp_path / "link").symlink_to(tmp_path / "checkout")
    with pytest.raises(UsageError, match="inside the workspace"):
        directories.make(tmp_path / "link" / "x", tmp_path / "a", _RUN, tmp_path / "checkout", lambda *_: False)


def test_a_work_directory_that_cannot_be_created_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(UsageError, match="no work directory") as raised:
        _make(tmp_path, "a")
    assert "work_dir" in raised.value.hint and "XDG_STATE_HOME" in raised.value.hint


def test_links_into_the_work_directory_work_after_its_end(tmp_path: Path) -> None:
    made = _make(tmp_path, "a", mounts=True)
    (made.path / "deep").mkdir()
    (made.path / "file.txt").write_text("a")
    links = {"deep/seen": made.seen / "file.txt", "path": made.path / "file.txt", "folder": made.seen / "deep"}
    others = {"outside": tmp_path / "x", "relative": Path("file.txt"), "beside": Path(f"{made.seen}-2")}
    for name, target in (links | others).items():
        (made.path / name).symlink_to(target)
    directories.keep_links(made)
    directories.end(tmp_path / "a")
    work = tmp_path / "a" / "work"
    assert (work / "deep" / "seen").read_text() == (work / "path").read_text() == "a"
    assert (work / "folder").is_dir()
    assert {name: (work / name).readlink() for name in others} == others
