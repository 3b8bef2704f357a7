"""The files to store of an attempt that ended while it wrote checkpoints."""

import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.records.outputs import OutputFiles
from m5ws.records.run import LaunchSpec, Run
from m5ws.repository import outputs as stored_outputs
from m5ws.repository import runs
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.repository import Repository
from m5ws.runs.outputs import complete_files, restored_outputs, saved_outputs
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

_RUN = "a" * 12
_PATHS = [b"out/1/state.pt", b"out/1/more.pt", b"out/2/state.pt", b"out/last.pt", b"out/step-9.pt"]


def _write(folder: Path, path: bytes, content: bytes, *, is_cut: bool = False) -> SourceFile:
    file = folder / os.fsdecode(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("state", content * 100)
    if is_cut:
        file.write_bytes(file.read_bytes()[:60])
    return SourceFile(path=path, location=os.path.realpath(file))


def _begin(repo: Repository, folder: Path) -> Run:
    snapshot = planted.publish(repo, planted.snapshot(planted.tree(repo, folder / "code", {"train.py": ""})))
    planted.run(repo, _RUN, snapshot, spec=LaunchSpec(command=("train.py",)))
    return runs.load(repo, _RUN)


def _store(repo: Repository, run: Run, folder: Path, paths: Iterable[bytes], moment: str) -> None:
    content = saved_outputs.content(repo, run, [_write(folder, path, b"old") for path in sorted(paths)])
    stored_outputs.publish(
        repo, OutputFiles(run=run.id, snapshot=run.snapshot, attempt=1, moment=moment, content=content)
    )


def _text(file: SourceFile) -> bytes:
    with zipfile.ZipFile(file.location) as archive:
        return archive.read("state")[:3]


@settings(max_examples=80)
@given(
    st.sets(st.sampled_from(_PATHS)),
    st.dictionaries(st.sampled_from(_PATHS), st.booleans()),
    st.sampled_from([stored_outputs.FINAL, "000000"]),
)
def test_no_complete_checkpoint_is_lost_and_no_cut_one_is_kept(
    copied: set[bytes], now: dict[bytes, bool], moment: str
) -> None:
    """`now` tells which files are cut. The stored files are a copy of this attempt, or the end of an earlier one."""
    repo = Repository.create(MemoryStore())
    with TemporaryDirectory() as name:
        folder, work = Path(name), Path(name, "work")
        work.mkdir()
        run = _begin(repo, folder)
        if copied:
            _store(repo, run, folder / "copy", copied, moment)
        files = [_write(work, path, b"new", is_cut=is_cut) for path, is_cut in now.items()]
        cut = {path for path, is_cut in now.items() if is_cut}
        selected, notices = complete_files.select(repo, _RUN, work, files)
        chosen = {file.path: file for file in selected}
        assert chosen.keys() >= (now.keys() - cut) | (cut & copied) and not chosen.keys() & (cut - copied)
        folders = {os.path.dirname(path) for path in cut & copied}
        for path, file in chosen.items():
            assert file.location == os.path.realpath(work / os.fsdecode(path))
            assert _text(file) == (b"old" if os.path.dirname(path) in folders and path in copied else b"new")
        told = " ".join(message for _, message in notices)
        assert all(path.decode() in told for path in cut) and bool(notices) == bool(cut)
        assert [path for path in folder.iterdir() if path.name.startswith("stored-")] == []


def test_an_empty_file_that_was_stored_is_no_cut_one(repo: Repository, tmp_path: Path) -> None:
    run, work = _begin(repo, tmp_path), tmp_path / "work"
    empty = work / "out" / "empty.pt"
    file = _write(work, b"out/empty.pt", b"")
    empty.write_bytes(b"")
    content = saved_outputs.content(repo, run, [file])
    record = OutputFiles(run=run.id, snapshot=run.snapshot, attempt=1, moment="000000", content=content)
    stored_outputs.publish(repo, record)
    newer = _write(work, b"out/step-9.pt", b"new")
    assert complete_files.select(repo, _RUN, work, [file, newer]) == ([file, newer], [])


def test_complete_files_are_stored_if_the_earlier_ones_cannot_be_read(repo: Repository, tmp_path: Path) -> None:
    run, work = _begin(repo, tmp_path), tmp_path / "work"
    _store(repo, run, tmp_path / "copy", [b"out/last.pt"], "000000")
    for path in Path(repo.store.url, "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"damage")
    cut, newer = _write(work, b"out/last.pt", b"new", is_cut=True), _write(work, b"out/step-9.pt", b"new")
    selected, notices = complete_files.select(repo, _RUN, work, [cut, newer])
    assert selected == [newer] and "out/last.pt" in notices[0][1]


@pytest.mark.parametrize("moved", [0, 1])
def test_files_that_are_put_back_are_of_one_moment_after_a_kill_too(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    run, work, paths = _begin(repo, tmp_path), tmp_path / "work", _PATHS[:2]
    _store(repo, run, tmp_path / "copy", paths, "000000")
    files = [_write(work, path, b"new", is_cut=path == paths[0]) for path in paths]
    move, done = restored_outputs._move, list[bytes]()

    def die(path: bytes, source: Path, target: Path) -> None:
        if len(done) == moved:
            raise KeyboardInterrupt
        done.append(path)
        move(path, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(restored_outputs, "_move", die)
        with pytest.raises(KeyboardInterrupt):
            complete_files.select(repo, _RUN, work, files)
    selected, _ = complete_files.select(repo, _RUN, work, files)
    assert [_text(file) for file in selected] == [b"old", b"old"]
