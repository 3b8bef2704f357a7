"""Output files of scripts that are killed at any moment: no complete file is lost, and no cut one is restored.

Scripts are functions that yield after each change of a file. They are killed after each change, and in the middle of
each write. Then the files are stored as after a kill, and restored as by a resume.
"""

import io
import itertools
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.errors import M5Error
from m5ws.records.gc import RetentionRules
from m5ws.records.run import LaunchSpec
from m5ws.repository import objects
from m5ws.repository import outputs as stored_outputs
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.repository import Repository
from m5ws.runs import inputs
from m5ws.runs.outputs import (
    checkpoint_formats,
    complete_files,
    copies,
    killed,
    outputs,
    restored_outputs,
    saved_outputs,
)
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

_RUN = "a" * 12
_SIZE = 300
Changes = Iterator[None]


def _zip(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("state"), content.ljust(_SIZE, b"."))
    return buffer.getvalue()


def _tensors(content: bytes) -> bytes:
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (_SIZE, _SIZE)
    return struct.pack("<Q", len(header)) + header + content.ljust(_SIZE, b".")


class _Attempts:
    """Attempts of a run whose scripts are killed. `work` is the folder of the present one."""

    def __init__(self, folder: Path) -> None:
        self.repo = Repository.create(MemoryStore())
        (folder / "code").mkdir()
        snapshot = planted.publish(self.repo, planted.snapshot(planted.tree(self.repo, folder / "code", {"x.py": ""})))
        self.run = planted.run(self.repo, _RUN, snapshot, spec=LaunchSpec(command=("x.py",), outputs=("out",)))
        self.folder, self.number, self.message = folder, 0, ""
        self.begin()

    def begin(self) -> None:
        """Begin an attempt with the files that a resume gets."""
        self.number += 1
        self.directory = self.folder / str(self.number)
        self.work = self.directory / "work"
        self.work.mkdir(parents=True)
        given = inputs.AttemptInputs(begun_ns=self.work.stat().st_ctime_ns, stamps=inputs.stamps(self.work))
        stored = restored_outputs.newest_to_restore(self.repo, _RUN)
        self.message = restored_outputs.restore(self.repo, stored, self.work) if stored is not None else ""
        inputs.save(self.directory, self.work, given)
        planted.begin(self.repo, _RUN, self.number)
        self.out = self.work / "out"
        self.out.mkdir(exist_ok=True)
        request, index = self.work.with_name("request"), self.work.with_name("index")
        self.copier = copies.OutputCopier(
            self.repo, self.run, self.number, 0.0, self.work, request, index, self._collect
        )

    def _collect(self) -> list[SourceFile]:
        given = inputs.load(self.directory, self.work)
        assert given is not None
        return list(outputs.collect(self.work, ("out",), given.stamps, given.begun_ns).files)

    def copy(self) -> None:
        assert self.copier.copy() is None

    def kill(self) -> list[str]:
        """Store the files as after a kill, and return the messages of its notices."""
        before = _tree(self.out)
        notices = killed.store(self.repo, _RUN, self.number, self.directory)
        assert _tree(self.out) == before
        return [notice.message for notice in notices]

    def stored(self) -> dict[str, bytes]:
        """Return the files of the present attempt that are in the store."""
        if stored_outputs.name(self.number) not in stored_outputs.names(self.repo, _RUN):
            return {}
        stored = restored_outputs.require_newest(self.repo, _RUN, self.number)
        with TemporaryDirectory() as folder:
            restored_outputs.write(self.repo, stored, Path(folder, "files"))
            return _tree(Path(folder, "files", "out"))


def _tree(top: Path) -> dict[str, bytes]:
    """Return the files below a folder by path. A link has its target."""
    files = dict[str, bytes]()
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                files[str(path.relative_to(top))] = b"link " + os.fsencode(os.readlink(path))
            elif name in names:
                files[str(path.relative_to(top))] = path.read_bytes()
    return files


def _write(path: Path, content: bytes) -> Changes:
    """Write a file in two halves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        yield
        file.write(content[: len(content) // 2])
        yield
        file.write(content[len(content) // 2 :])
    yield


def _step(file: Path) -> int:
    match = re.search(rb"step ([0-9]+)", file.read_bytes())
    assert match is not None and checkpoint_formats.ending(file) == "complete"
    return int(match[1])


# --- scripts: each returns the step from which it resumes, and yields after each change -------------


class _Script:
    """`save` yields after each change of a file. `resume` returns the step of the checkpoint that it finds."""

    is_torn = False
    """True if a kill between two files of a checkpoint leaves one that looks complete."""

    def resume(self, out: Path) -> int:
        raise NotImplementedError

    def save(self, out: Path, step: int) -> Changes:
        raise NotImplementedError


class _NewNames(_Script):
    """Writes each checkpoint under a new name, keeps two, and writes the name of the newest one to a file."""

    def resume(self, out: Path) -> int:
        latest = out / "latest"
        return _step(out / latest.read_text()) if latest.exists() else 0

    def save(self, out: Path, step: int) -> Changes:
        yield from _write(out / f"step-{step}.ckpt", _zip(b"step %d" % step))
        yield from _replace(out / "latest", b"step-%d.ckpt" % step)
        for path in sorted(out.glob("step-*.ckpt"), key=_number)[:-2]:
            path.unlink()
            yield


class _Overwritten(_Script):
    """Overwrites two files that belong together, and a text file."""

    is_torn = True

    def resume(self, out: Path) -> int:
        if not (out / "model").exists():
            return 0
        step = _step(out / "model")
        assert _step(out / "optimizer.pth.tar") == step and int((out / "state.json").read_text()) == step
        return step

    def save(self, out: Path, step: int) -> Changes:
        yield from _write(out / "model", _tensors(b"step %d" % step))
        yield from _write(out / "optimizer.pth.tar", _zip(b"step %d" % step))
        yield from _replace(out / "state.json", b"%d" % step)


class _OfTwoFolders(_Overwritten):
    """Overwrites a file in each of two folders."""

    def resume(self, out: Path) -> int:
        if not (out / "a" / "model").exists():
            return 0
        step = _step(out / "a" / "model")
        assert _step(out / "b" / "model") == step
        return step

    def save(self, out: Path, step: int) -> Changes:
        yield from _write(out / "a" / "model", _tensors(b"step %d" % step))
        yield from _write(out / "b" / "model", _zip(b"step %d" % step))


class _RemovedFirst(_Script):
    """Removes the checkpoint before it writes the next one."""

    def resume(self, out: Path) -> int:
        return max((_step(path) for path in out.glob("step-*")), default=0)

    def save(self, out: Path, step: int) -> Changes:
        for path in out.glob("step-*"):
            path.unlink()
            yield
        yield from _write(out / "metrics.json", b"%d" % step)
        yield from _write(out / f"step-{step}.pt", _zip(b"step %d" % step))
        yield from _write(out / f"sample-{step}.npz", _zip(b"")[:60] + b"")


class _PairRemovedFirst(_Script):
    """Removes a model and its larger optimizer, one after the other, before it writes the next ones."""

    names = ("model-*.pt", "optimizer-*.pt")

    def resume(self, out: Path) -> int:
        first, second = ({_step(path) for path in out.glob(name)} for name in self.names)
        return max(first & second, default=0)

    def save(self, out: Path, step: int) -> Changes:
        for path in sorted(path for name in self.names for path in out.glob(name)):
            path.unlink()
            yield
        for size, name in zip((_SIZE, 2 * _SIZE), self.names, strict=True):
            yield from _write(out / name.replace("*", str(step)), _zip((b"step %d" % step).ljust(size, b".")))


class _FolderRemovedFirst(_PairRemovedFirst):
    """As above, in a folder of each step."""

    names = ("step-*/model.pt", "step-*/optimizer.pt")


class _OneFolderRemovedFirst(_PairRemovedFirst):
    """As above, in one folder."""

    names = ("last/model.pt", "last/optimizer.pt")


class _Rotated(_Script):
    """Renames the checkpoint before it writes the next one."""

    def resume(self, out: Path) -> int:
        for name in ("last.pt", "previous.pt"):
            if (out / name).exists():
                return _step(out / name)
        return 0

    def save(self, out: Path, step: int) -> Changes:
        if (out / "last.pt").exists():
            (out / "last.pt").replace(out / "previous.pt")
            yield
        yield from _write(out / "last.pt", _zip(b"step %d" % step))


class _Folders(_Script):
    """Writes each checkpoint to a new folder, with a link to the newest one that it sets at the beginning."""

    is_early, is_torn = True, True

    def resume(self, out: Path) -> int:
        if not (out / "latest").exists():
            return 0
        assert (out / "latest").is_symlink()
        step = _step(out / "latest" / "model.safetensors")
        assert _step(out / "latest" / "optimizer.pt") == step
        return step

    def _link(self, out: Path, step: int) -> Changes:
        (out / "new").symlink_to(out / f"step-{step}" if step % 2 else Path(f"step-{step}"))
        yield
        (out / "new").replace(out / "latest")
        yield

    def save(self, out: Path, step: int) -> Changes:
        if self.is_early:
            yield from self._link(out, step)
        yield from _write(out / f"step-{step}" / "model.safetensors", _tensors(b"step %d" % step))
        yield from _write(out / f"step-{step}" / "optimizer.pt", _zip(b"step %d" % step))
        if not self.is_early:
            yield from self._link(out, step)
        for path in sorted(out.glob("step-*"), key=_number)[:-2]:
            shutil.rmtree(path)
            yield


class _LateLink(_Folders):
    """As above, with the link at the end."""

    is_early, is_torn = False, False


class _LinkedFile(_NewNames):
    """Writes each checkpoint under a new name, and sets a link to the newest one at the end."""

    def resume(self, out: Path) -> int:
        return _step(out / "latest.ckpt") if (out / "latest.ckpt").exists() else 0

    def save(self, out: Path, step: int) -> Changes:
        yield from super().save(out, step)
        assert (out / "latest.ckpt").is_symlink() or not (out / "latest.ckpt").exists()
        (out / "new.ckpt").symlink_to(out / f"step-{step}.ckpt" if step % 2 else f"step-{step}.ckpt")
        yield
        (out / "new.ckpt").replace(out / "latest.ckpt")
        yield


class _OverwrittenBehindALink(_LinkedFile):
    """Overwrites a file through a link."""

    def save(self, out: Path, step: int) -> Changes:
        if not (out / "latest.ckpt").exists():
            (out / "latest.ckpt").symlink_to("state.ckpt")
            yield
        assert (out / "latest.ckpt").is_symlink()
        yield from _write(out / "latest.ckpt", _zip(b"step %d" % step))


def _replace(path: Path, content: bytes) -> Changes:
    """Write a file under another name, and rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    yield
    temporary.replace(path)
    yield


def _number(path: Path) -> int:
    return int(re.findall("[0-9]+", path.name)[0])


_SCRIPTS = [
    *(_NewNames, _Overwritten, _OfTwoFolders, _RemovedFirst, _Rotated, _Folders, _LateLink),
    *(_PairRemovedFirst, _FolderRemovedFirst, _OneFolderRemovedFirst, _LinkedFile, _OverwrittenBehindALink),
]


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda script: script.__name__.strip("_"))
def test_a_script_that_is_killed_at_any_moment_continues_from_a_stored_checkpoint(
    script: Callable[[], _Script], tmp_path: Path
) -> None:
    """The first attempt ends after step 1. The second one is killed in the save of step 3."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        folder.mkdir()
        attempts, loop = _Attempts(folder), script()
        for _ in loop.save(attempts.out, 1):
            pass
        attempts.kill()
        attempts.begin()
        assert loop.resume(attempts.out) == 1
        for _ in loop.save(attempts.out, 2):
            pass
        saving = loop.save(attempts.out, 3)
        is_killed = len(list(itertools.islice(saving, moment))) == moment
        is_cut = any(message.startswith(complete_files.WITHOUT_END) for message in attempts.kill())
        attempts.begin()
        if is_cut or not loop.is_torn or not is_killed:
            assert loop.resume(attempts.out) >= (1 if is_killed else 3), moment
        shutil.rmtree(folder)
        if not is_killed:
            return


# --- single cases ----------------------------------------------------------------------------------


@pytest.fixture
def attempts(tmp_path: Path) -> _Attempts:
    return _Attempts(tmp_path)


def _put(attempts: _Attempts, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = attempts.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _of(step: int) -> bytes:
    return _zip(b"step %d" % step)


def _cut(step: int) -> bytes:
    return _of(step)[:100]


def _again(attempts: _Attempts, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write files, kill the attempt, and return the files that a resume gets."""
    _put(attempts, files)
    attempts.kill()
    attempts.begin()
    return _tree(attempts.out)


def test_text_files_are_those_of_the_newest_complete_checkpoint(attempts: _Attempts) -> None:
    old = {"last.pt": _of(4), "step-4.pt": _of(4), "latest": b"step-4", "metrics": b"4"}
    _again(attempts, old)
    new = {"step-8.pt": _of(8), "latest": b"step-8", "metrics": b"8"}
    assert _again(attempts, {**new, "last.pt": _cut(8)}) == {**old, **new}
    assert "out/last.pt" in attempts.message
    # A small file beside a cut checkpoint is no newer one, and the texts belong to the earlier one.
    later = {"sample-9.npz": _small(), "latest": b"step-9", "metrics": b"9"}
    assert _again(attempts, {**later, "last.pt": _cut(9)}) == {**old, **new, "sample-9.npz": _small()}
    assert attempts.stored() == {} and "out/metrics" in attempts.message


def _small() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a"), b"")
    return buffer.getvalue()


def test_texts_of_another_folder_stay_those_of_the_end(attempts: _Attempts) -> None:
    _again(attempts, {"a/last.pt": _of(4), "b/log": b"4", "log": b"4"})
    assert _again(attempts, {"a/last.pt": _cut(8), "b/log": b"8", "log": b"8"}) == {
        "a/last.pt": _of(4),
        "b/log": b"8",
        "log": b"4",
    }


@pytest.mark.parametrize("first", [True, False])
def test_a_new_folder_of_which_a_file_was_cut_is_not_restored(attempts: _Attempts, first: bool) -> None:
    old = {} if first else {"step-4/rank-0.pt": _of(4), "step-4/rank-1.pt": _of(4), "step-4/state.json": b"4"}
    new = {"step-8/rank-0.pt": _of(8), "step-8/rank-1.pt": _cut(8), "step-8/state.json": b"8"}
    _again(attempts, {**old, "log": b"4"})
    if first:
        new = {path.replace("rank-1.pt", "optimizer.bin"): content for path, content in new.items()}
    assert _again(attempts, new) == {**old, "log": b"4"}
    assert "out/step-8/rank-0.pt" in attempts.message and "--attempt 2" in attempts.message
    attempts.number -= 1
    assert {"step-8/rank-0.pt": _of(8), "step-8/state.json": b"8"}.items() <= attempts.stored().items()


def test_folders_in_a_new_folder_belong_to_it_if_an_earlier_one_has_them(attempts: _Attempts) -> None:
    old = {"step-4/model/a.pt": _of(4), "step-4/optimizer/a.pt": _of(4)}
    _again(attempts, old)
    assert _again(attempts, {"step-8/model/a.pt": _of(8), "step-8/optimizer/a.pt": _cut(8)}) == old


@pytest.mark.parametrize("cut", ["version_0/epoch=1.ckpt", "version_0/last.ckpt"])
def test_a_folder_with_a_checkpoint_in_each_file_is_restored_without_the_cut_one(attempts: _Attempts, cut: str) -> None:
    """As in Lightning's folder of a first attempt."""
    assert _again(attempts, {"version_0/epoch=0.ckpt": _of(1), cut: _cut(2)}) == {"version_0/epoch=0.ckpt": _of(1)}


def test_a_file_that_is_emptied_counts_as_cut(attempts: _Attempts) -> None:
    _again(attempts, {"model": _of(4), "__0_0.distcp": b""})
    assert _again(attempts, {"model": b"", "__0_0.distcp": b""}) == {"model": _of(4), "__0_0.distcp": b""}


def test_a_removed_file_is_not_restored_if_a_newer_checkpoint_is_as_large(attempts: _Attempts) -> None:
    _again(attempts, {"step-4.pt": _of(4), "cache.npz": _small()})
    (attempts.out / "step-4.pt").unlink()
    (attempts.out / "cache.npz").unlink()
    assert _again(attempts, {"step-8.pt": _of(8)}) == {"step-8.pt": _of(8)}


@pytest.mark.parametrize(
    ("old", "new", "cut"),
    [
        (["step-4.pt", "state.json"], ["average-8.pt", "state.json"], "step-8.pt"),
        (["model-4.pt", "optimizer-4.pt"], ["model-8.pt"], "optimizer-8.pt"),
        (["last.pt", "state.json"], ["predictions.npz", "state.json"], "last.tmp"),
        (
            ["step-4/model.pt", "step-4/optimizer.pt", "step-4/state.json", "latest"],
            ["best/model.pt"],
            "step-8/model.pt",
        ),
    ],
)
def test_removed_files_are_restored_if_another_checkpoint_alone_is_complete(
    attempts: _Attempts, old: list[str], new: list[str], cut: str
) -> None:
    earlier = {name: _of(4) if name.endswith(".pt") else b"4" for name in old}
    later = {name: _of(8) if name.endswith((".pt", ".npz")) else b"8" for name in new}
    _again(attempts, earlier)
    for name in old:
        (attempts.out / name).unlink()
    assert _again(attempts, {**later, cut: _cut(8)}) == {**later, **earlier}


def test_a_removed_file_is_not_restored_if_its_successor_is_complete(attempts: _Attempts) -> None:
    _again(attempts, {"step-4.pt": _of(4), "latest": b"4"})
    (attempts.out / "step-4.pt").unlink()
    new = {"step-8.pt": _of(8), "latest": b"8"}
    assert _again(attempts, {**new, "step-9.pt": _cut(9), ".step-10.pt": _cut(10)}) == new


@pytest.mark.parametrize("name", ["last.tmp", ".last.pt", "tmp-last.pt", "new.partial/last.pt"])
@pytest.mark.parametrize("is_emptied", [True, False])
def test_a_cut_file_with_a_temporary_name_leaves_the_complete_one(
    attempts: _Attempts, name: str, is_emptied: bool
) -> None:
    """The first attempt was killed before it renamed its complete file."""
    _again(attempts, {"last.pt": _of(4), name: _of(8), "log": b"8"})
    new = {"last.pt": _of(12), "log": b"12"}
    restored = _again(attempts, {**new, name: b"" if is_emptied else _cut(16)})
    assert {path: content for path, content in restored.items() if content} == new
    assert _again(attempts, {name: _of(16)}) == {**new, name: _of(16)}
    assert _again(attempts, {name: _cut(20)}) == {**new, name: _of(16)}


def test_a_copy_of_a_save_that_stalls_has_the_earlier_checkpoint(attempts: _Attempts) -> None:
    _put(attempts, {"last.pt": _of(4), "log": b"4"})
    attempts.copy()
    for log in (b"8", b"9"):
        _put(attempts, {"last.pt": _cut(8), "log": log})
        attempts.copy()
    stored = restored_outputs.newest(attempts.repo, _RUN)
    assert _files(attempts, stored) == {"last.pt": _of(4), "log": b"4"}
    assert len(stored_outputs.names(attempts.repo, _RUN)) == 3
    # gc retires copies that are not the newest.
    planned = gc.plan(attempts.repo, RetentionRules(), -60.0)
    assert planned.id is not None and execute.execute(attempts.repo, planned.id, "lock", grace_s=0.0).copies == 2
    assert _again(attempts, {}) == {"last.pt": _of(4), "log": b"4"}
    assert fsck.check(attempts.repo, read_data=True).damage == ()


def test_a_checkpoint_that_is_written_during_a_copy_is_left_to_the_next_copy(attempts: _Attempts) -> None:
    _put(attempts, {"last.pt": _of(4)})
    files = attempts._collect()
    content = saved_outputs.content

    def write(*given: Any) -> Any:
        _put(attempts, {"last.pt": _cut(8)})
        return content(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_outputs, "content", write)
        with pytest.raises(M5Error, match=r"last\.pt"):
            saved_outputs.record(attempts.repo, attempts.run, "0001-000000", files, attempts.work)


def test_complete_files_are_stored_if_the_earlier_ones_cannot_be_read(attempts: _Attempts) -> None:
    _again(attempts, {"last.pt": _of(4)})
    stored = restored_outputs.newest(attempts.repo, _RUN)
    assert stored is not None
    attempts.repo.store.delete(objects.key(stored.content))
    _put(attempts, {"last.pt": _cut(8), "step-9.pt": _of(9)})
    assert any("out/last.pt" in message for message in attempts.kill())
    assert attempts.stored() == {"step-9.pt": _of(9)}


def test_nothing_is_restored_through_a_link_of_the_snapshot(attempts: _Attempts, tmp_path: Path) -> None:
    _put(attempts, {"folder/last.pt": _of(4), "file/last.pt": _of(4)})
    attempts.kill()
    outside, work = tmp_path / "outside", tmp_path / "elsewhere" / "work"
    outside.mkdir()
    (work / "out").mkdir(parents=True)
    (work / "out" / "folder").symlink_to(outside)
    (work / "out" / "file").write_text("a file of the snapshot")
    stored = restored_outputs.newest(attempts.repo, _RUN)
    assert stored is not None
    restored_outputs.restore(attempts.repo, stored, work)
    assert list(outside.iterdir()) == []
    assert _tree(work / "out") == {"folder/last.pt": _of(4), "file/last.pt": _of(4)}


def test_empty_folders_are_made_again_but_for_those_that_look_like_checkpoints(
    attempts: _Attempts, tmp_path: Path
) -> None:
    prepared = ("fold_0", "fold_1", "years/2024", "years/2025", "epoch_1/x", "epoch_2/x", "done-1", "done-2/x")
    checkpoints = ("step-8", "full/step-1/x", "cut-2/x", "new-1", "new-2/x")
    for name in ("samples", "cifar10/logs", *prepared, *checkpoints, "full-2/x", "behind", "file"):
        (attempts.out / name).mkdir(parents=True)
    # `done-2` is older than the file of `done-1`, and `new-2` newer than the first one of `new-1`.
    for moment, name in enumerate(["done-2", "done-1/last.pt", "new-1/last.pt", "new-2", "new-1/later.pt"], 1):
        if name.endswith(".pt"):
            _put(attempts, {name: _of(1)})
        os.utime(attempts.out / name, (moment, moment))
    _put(attempts, {"cut-2/last.pt": _cut(1)})
    outside = tmp_path / "outside"
    outside.mkdir()
    (attempts.out / "link").symlink_to(outside)
    _put(attempts, {"full-2/last.pt": _of(1)})
    attempts.kill()
    attempts.begin()
    folders = {str(path.relative_to(attempts.out)) for path in attempts.out.rglob("*") if path.is_dir()}
    kept = {*prepared, "samples", "cifar10/logs", "new-1", "full-2/x", "behind", "file"}
    assert folders == kept | {os.path.dirname(path) for path in kept if "/" in path}
    # The same holds after another kill.
    attempts.kill()
    attempts.begin()
    assert folders == {str(path.relative_to(attempts.out)) for path in attempts.out.rglob("*") if path.is_dir()}
    # A resume of a run whose snapshot has a link and a file at these places.
    stored = restored_outputs.newest_to_restore(attempts.repo, _RUN)
    assert stored is not None
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    (work / "out" / "behind").symlink_to(outside)
    (work / "out" / "file").write_text("a file")
    foreign = (b"out/behind/in", b"../up", b"/abs", str(tmp_path / "absolute").encode(), b"out/./x/../../../up")
    restored_outputs.restore(attempts.repo, msgspec.structs.replace(stored, folders=(*stored.folders, *foreign)), work)
    assert not (tmp_path / "up").exists() and not (tmp_path / "absolute").exists()
    assert not list(outside.iterdir()) and (work / "out" / "file").is_file() and (work / "out" / "samples").is_dir()


def test_a_resume_gets_nothing_if_the_first_checkpoint_is_not_complete(attempts: _Attempts) -> None:
    _put(attempts, {"step-1/model": _of(1), "step-1/optimizer": _cut(1)})
    attempts.kill()
    assert attempts.stored() == {"step-1/model": _of(1)}
    assert restored_outputs.newest_to_restore(attempts.repo, _RUN) is None


# --- any changes of files --------------------------------------------------------------------------

_PATHS = ["last.pt", "previous", "step-1.pth.tar", "step-2.pth.tar", "step-1/model", "step-1/more", "step-2/model"]
_TEXTS = ["latest", "step-1/state.json"]
_LINK = "link"
_CHANGES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([*_PATHS, *_TEXTS])),
    st.tuples(st.just("rename"), st.sampled_from(_PATHS), st.sampled_from(_PATHS)),
    st.tuples(st.just("remove"), st.sampled_from([*_PATHS, *_TEXTS, "step-1", "step-2"])),
    st.tuples(st.just("link"), st.sampled_from(["step-1", "step-2", "step-9", "last.pt", "step-1.pth.tar"])),
    st.tuples(st.just("copy")),
)


def _change(attempts: _Attempts, change: tuple[str, ...], content: bytes) -> Changes:
    """Make a change if it is possible, and yield at each moment of it."""
    kind, *names = change
    paths = [attempts.out / name for name in names]
    if kind == "write":
        yield from _write(paths[0], content)
    elif kind == "rename" and paths[0].exists():
        paths[1].parent.mkdir(exist_ok=True)
        paths[0].replace(paths[1])
    elif kind == "remove" and paths[0].is_dir():
        shutil.rmtree(paths[0])
    elif kind == "remove":
        paths[0].unlink(missing_ok=True)
    elif kind == "link":
        (attempts.out / _LINK).unlink(missing_ok=True)
        (attempts.out / _LINK).symlink_to(names[0])
    elif kind == "copy":
        attempts.copy()


def _checkpoints(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if content.startswith(b"PK\x03\x04")}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(_CHANGES, max_size=6), _CHANGES, st.integers(0, 3)), min_size=1, max_size=3))
def test_no_complete_file_is_lost_and_no_cut_one_is_restored_whatever_a_script_does(
    attempts_of: list[tuple[list[tuple[str, ...]], tuple[str, ...], int]],
) -> None:
    """Each attempt makes some changes, and is killed at a moment of its last one."""
    with TemporaryDirectory() as name:
        attempts, whole, number = _Attempts(Path(name)), set[bytes](), itertools.count()
        for changes, last, moment in attempts_of:
            got = _tree(attempts.out)
            for change in (*changes, last):
                serial = next(number)
                text = any(name in change for name in _TEXTS)
                content = b"text %d" % serial if text else _zip(b"step %d" % serial)
                whole.add(content)
                steps = _change(attempts, change, content)
                for _ in itertools.islice(steps, moment) if change is last else steps:
                    pass
            before = restored_outputs.newest(attempts.repo, _RUN)
            earlier = _files(attempts, before)
            left = _tree(attempts.out)
            messages = attempts.kill()
            complete = {path: each for path, each in _checkpoints(left).items() if each in whole}
            cut = _checkpoints(left).keys() - complete.keys()
            stored = attempts.stored()
            # Each complete file is in the store, and no cut one.
            assert complete.items() <= stored.items() and not cut & stored.keys()
            assert all(any(path in message for message in messages) for path in cut)
            attempts.begin()
            restored = _tree(attempts.out)
            # No cut file is restored, and no file under the name of another one.
            assert set(_checkpoints(restored).values()) <= whole
            for path, each in restored.items():
                assert each in (left.get(path), earlier.get(path)), path
                assert not each.startswith(b"link ") or (attempts.out / path).exists()
            # Complete files that are not restored are named. If none is restored, the command refuses to resume.
            lost = [path for path, each in complete.items() if each not in restored.values()]
            assert not restored or all(path in attempts.message for path in lost)
            # No resume starts from nothing if the last one did not.
            assert _checkpoints(restored) or not _checkpoints({**got, **earlier})


def _files(attempts: _Attempts, stored: restored_outputs.StoredOutputs | None) -> dict[str, bytes]:
    """Return the files that a resume gets of stored output files."""
    if stored is None:
        return {}
    with TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        restored_outputs.restore(attempts.repo, stored, work)
        return _tree(work / "out")
