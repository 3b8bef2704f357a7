"""Scripts without a session that are killed at any moment: a resume finds the same files as plain Python.

Scripts are generators that yield after each change of a file, and in the middle of each write. They are killed after
any change. Then the files are stored as after a kill, and restored as by a resume, into another work directory.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.errors import CorruptObject
from m5ws.outputs import collect, copies, killed, restoring, saved
from m5ws.outputs.collect import Outputs
from m5ws.records.run import LaunchSpec
from m5ws.repository.references import outputs as stored_outputs
from m5ws.repository.repository import Repository
from m5ws.work import inputs
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore
from tests.support.workspace.checkouts import write

_RUN = "a" * 12
_DECLARED = ("out", "last.pt")
_INPUTS = {"train.py": "1", "out/given.txt": "of the snapshot"}
Changes = Iterator[None]
Found = dict[str, tuple[str, bytes, int]]


class _Attempts:
    """Attempts of a run whose scripts are killed. `work` is the directory of the present attempt."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repository.create(MemoryStore())
        code = planted.tree(self.repo, folder / "code", _INPUTS)
        spec = LaunchSpec(command=("train.py",), outputs=_DECLARED)
        self.run = planted.run(self.repo, _RUN, planted.publish(self.repo, planted.snapshot(code)), spec=spec)
        self.folder, self.number = folder, 0
        self.begin(None)

    def begin(self, name: str | None) -> None:
        """Begin an attempt with the output files `name`."""
        self.number += 1
        self.directory = self.folder / str(self.number)
        self.work = self.directory / "work"
        write(self.work, _INPUTS)
        known = inputs.AttemptInputs(begun_ns=self.work.stat().st_ctime_ns, stamps=inputs.stamps(self.work))
        if name is not None:
            restoring.restore(self.repo, saved.load(self.repo, _RUN, name), self.work)
        inputs.save(self.directory, self.work, known)
        planted.begin(self.repo, _RUN, self.number)
        self.copier = copies.OutputCopier(self.repo, self.run, self.number, 0.0, self.directory / "index", self.collect)

    def collect(self) -> Outputs:
        left = collect.collect_left(self.directory, _DECLARED)
        assert left is not None
        return left

    def copy(self) -> None:
        """Copy the files. A file that was written within a tick of the clock fails the copy."""
        while self.copier.copy() is not None:
            pass

    def kill_and_resume(self) -> None:
        killed.store(self.repo, _RUN, self.number, self.directory)
        newest = saved.newest(self.repo, _RUN)
        self.begin(newest.name if newest is not None else None)


def _found(work: Path) -> Found:
    """Return all that a script can find below a folder, but for inputs: kinds, contents, and times of all but links."""
    found: Found = {}
    for folder, folders, names in os.walk(work):
        for path in (Path(folder, name) for name in (*folders, *names)):
            name, time_ns = str(path.relative_to(work)), path.lstat().st_mtime_ns
            if path.is_symlink():
                found[name] = "link", os.fsencode(os.readlink(path)), 0
            elif path.is_dir():
                found[name] = "folder", b"", time_ns
            elif name not in _INPUTS or path.read_text() != _INPUTS[name]:
                found[name] = "exec" if os.access(path, os.X_OK) else "file", path.read_bytes(), time_ns
    return found


# --- scripts ---------------------------------------------------------------------------------------


def _write(path: Path, content: bytes) -> Changes:
    """Write a file in two halves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        yield
        file.write(content[: len(content) // 2])
        yield
        file.write(content[len(content) // 2 :])
    yield


def _in_place(work: Path, step: int) -> Changes:
    yield from _write(work / "last.pt", b"model %d" % step)
    yield from _write(work / "out" / "optimizer.pt", b"optimizer %d" % step)


def _replaced(work: Path, step: int) -> Changes:
    yield from _write(work / "out" / "new.tmp", b"model %d" % step)
    (work / "out" / "new.tmp").replace(work / "out" / "model.pt")
    yield


def _in_folders(work: Path, step: int) -> Changes:
    folder = work / "out" / f"step-{step}"
    folder.mkdir(parents=True)
    yield
    for name in ("model.pt", "optimizer.pt"):
        yield from _write(folder / name, b"%d" % step)
    latest = work / "out" / "latest"
    latest.unlink(missing_ok=True)
    yield
    latest.symlink_to(folder.name)
    yield


def _rotating(work: Path, step: int) -> Changes:
    shutil.rmtree(work / "out" / f"step-{step - 2}", ignore_errors=True)
    yield
    yield from _in_folders(work, step)


Script = Callable[[Path, int], Changes]


def _play(work: Path, script: Script, moment: int) -> bool:
    """Run a script for three steps after the existing steps; kill it at a moment. Return False if it ended before."""
    begun = max((int(path.name.removeprefix("step-")) for path in (work / "out").glob("step-*")), default=0)
    changes = itertools.chain.from_iterable(script(work, begun + step) for step in range(1, 4))
    return len(list(itertools.islice(changes, moment))) == moment


@pytest.mark.parametrize("script", [_in_place, _replaced, _in_folders, _rotating])
def test_a_resume_after_any_write_finds_the_files_that_plain_python_finds(script: Script, tmp_path: Path) -> None:
    """The same script is killed at the same writes, twice, without m5ws."""
    moment, is_killed = 0, True
    while is_killed:
        moment += 1
        plain, attempts = tmp_path / f"plain-{moment}", _Attempts(tmp_path / str(moment))
        write(plain, _INPUTS)
        is_killed = _play(plain, script, moment)
        assert _play(attempts.work, script, moment) == is_killed
        if not attempts.collect().files:
            continue  # There is nothing to restore, and the command says so.
        for _ in range(2):
            left = _found(attempts.work)
            attempts.kill_and_resume()
            assert _found(attempts.work) == left
            assert _play(plain, script, 3) == _play(attempts.work, script, 3)
        assert _contents(plain) == _contents(attempts.work)
    assert moment > 10


def _contents(work: Path) -> set[tuple[str, str, bytes]]:
    return {(name, kind, content) for name, (kind, content, _) in _found(work).items()}


# --- any changes of files --------------------------------------------------------------------------

_PATHS = ["out/last.pt", "out/step-1/model", "out/step-2/model", "out/.hidden~", "out/given.txt", "last.pt"]
_FOLDERS = ["out/step-1", "out/step-2", "out/empty", "out"]
_CHANGES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(_PATHS)),
    st.tuples(st.just("rename"), st.sampled_from(_PATHS), st.sampled_from(_PATHS)),
    st.tuples(st.just("remove"), st.sampled_from(_PATHS[:4] + _FOLDERS[:3])),
    st.tuples(st.just("folder"), st.sampled_from(_FOLDERS)),
    st.tuples(st.just("link"), st.sampled_from(["step-1", "step-2/model", "nothing", "given.txt", "../train.py"])),
    st.tuples(st.just("touch"), st.sampled_from(_PATHS)),
    st.tuples(st.just("copy")),
)


def _change(attempts: _Attempts, change: tuple[str, ...], content: bytes) -> Changes:
    """Make a change if it is possible, and yield at each moment of it."""
    kind, *names = change
    paths = [attempts.work / name for name in names]
    if kind == "write" and not paths[0].is_dir():
        yield from _write(paths[0], content)
    elif kind == "rename" and paths[0].is_file():
        paths[1].parent.mkdir(exist_ok=True)
        paths[0].replace(paths[1])
    elif kind == "remove" and paths[0].is_dir():
        shutil.rmtree(paths[0])
    elif kind == "remove":
        paths[0].unlink(missing_ok=True)
    elif kind == "folder":
        paths[0].mkdir(parents=True, exist_ok=True)
    elif kind == "link":
        link = attempts.work / "out" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(names[0])
    elif kind == "touch" and paths[0].exists():
        os.utime(paths[0], ns=(len(content), 1_700_000_000_123_456_789))
        paths[0].chmod(0o755)
    yield


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(_CHANGES, max_size=6), _CHANGES, st.integers(0, 3)), min_size=1, max_size=3))
def test_resume_restores_one_whole_copy(attempts_of: list[tuple[list[tuple[str, ...]], tuple[str, ...], int]]) -> None:
    """Each attempt makes changes and is killed in its last one. By its name, each copy is restored as it was."""
    with TemporaryDirectory() as folder:
        attempts, number = _Attempts(Path(folder)), itertools.count()
        moments = dict[str, Found]()
        for changes, last, moment in attempts_of:
            for change in (*changes, last):
                steps = _change(attempts, change, b"%d" % next(number))
                for _ in itertools.islice(steps, moment) if change is last else steps:
                    pass
                if change[0] == "copy":
                    attempts.copy()
                    names = stored_outputs.names(attempts.repo, _RUN)
                    moments |= {name: _found(attempts.work) for name in names if name not in moments}
            left = _found(attempts.work)
            attempts.kill_and_resume()
            if stored_outputs.names(attempts.repo, _RUN):
                moments[stored_outputs.name(attempts.number - 1)] = left
                assert _found(attempts.work) == left
        for name in stored_outputs.names(attempts.repo, _RUN):
            attempts.begin(name)
            assert _found(attempts.work) == moments[name]


# --- copies of a running script --------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_copy_has_files_of_one_moment(tmp_path: Path, call: int) -> None:
    """The script writes two files before the upload, before the files are read, or while they are read."""
    attempts = _Attempts(tmp_path)
    pair = [attempts.work / "out" / name for name in ("a", "b")]
    calls, collect = itertools.count(1), attempts.collect

    def write_and_collect() -> Outputs:
        if next(calls) == call:
            for path in pair:
                path.write_bytes(b"new")
        return collect()

    for path in pair:
        path.write_bytes(b"old")
    copier = copies.OutputCopier(attempts.repo, attempts.run, 1, 0.0, tmp_path / "index", write_and_collect)
    tries = 1
    while copier.copy() is not None:
        tries += 1
    attempts.begin("0001-0-000000")
    assert [(attempts.work / "out" / name).read_bytes() for name in ("a", "b")] == [b"new", b"new"]
    assert call < 3 or tries > 1


def test_a_copy_that_never_succeeds_is_an_error_and_no_copy(tmp_path: Path) -> None:
    attempts = _Attempts(tmp_path)

    def write_and_collect() -> Outputs:
        (attempts.work / "out" / "log").write_text("x")
        return attempts.collect()

    copier = copies.OutputCopier(attempts.repo, attempts.run, 1, 0.0, tmp_path / "index", write_and_collect)
    assert [copier.copy() for _ in range(3)] == ["files were written while they were copied"] * 3
    assert stored_outputs.names(attempts.repo, _RUN) == []


# --- places that lead elsewhere --------------------------------------------------------------------


def test_a_restore_writes_nothing_outside_of_the_work_directory(tmp_path: Path) -> None:
    attempts = _Attempts(tmp_path)
    for name in ("folder/model", "file/model", "empty/x/y"):
        write(attempts.work, {f"out/{name}": "1"})
    (attempts.work / "out" / "empty" / "x" / "y").unlink()
    killed.store(attempts.repo, _RUN, 1, attempts.directory)
    outside, work = tmp_path / "outside", tmp_path / "elsewhere" / "work"
    outside.mkdir()
    write(work, {"out/file": "a file of the snapshot"})
    for name in ("folder", "empty"):
        (work / "out" / name).symlink_to(outside)
    stored = saved.newest(attempts.repo, _RUN)
    assert stored is not None
    restoring.restore(attempts.repo, stored, work)
    assert list(outside.iterdir()) == [] and _found(work) == _found(attempts.work)


@pytest.mark.parametrize("path", [b"out/../../up", b"/absolute", b"..", b"out//x"])
@pytest.mark.parametrize("field", ["folders", "links"])
def test_a_record_with_a_path_outside_the_work_directory_is_refused(tmp_path: Path, path: bytes, field: str) -> None:
    attempts = _Attempts(tmp_path)
    write(attempts.work, {"out/a": "1"})
    killed.store(attempts.repo, _RUN, 1, attempts.directory)
    record = stored_outputs.find(attempts.repo, _RUN, "0001-0-final")[1]
    value = ((path, 0),) if field == "folders" else ((path, b"a"),)
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    stored_outputs.publish(attempts.repo, type(record)(**fields | {"moment": "000000", field: value}))
    with pytest.raises(CorruptObject):
        attempts.begin("0001-0-000000")
    assert not (tmp_path / "2" / "up").exists() and not Path("/absolute").exists()


def test_a_link_out_of_the_outputs_is_restored_as_its_content(tmp_path: Path) -> None:
    attempts = _Attempts(tmp_path)
    write(attempts.work, {"kept/weights": "1"})
    write(tmp_path, {"old/data": "2"})
    (attempts.work / "out" / "best").symlink_to("../kept")
    (attempts.work / "out" / "data").symlink_to(tmp_path / "old")
    attempts.kill_and_resume()
    assert (attempts.work / "out" / "best" / "weights").read_text() == "1"
    # The script wrote into this folder after its start.
    assert (attempts.work / "out" / "data" / "data").read_text() == "2"
