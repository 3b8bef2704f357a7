"""Copies of output files that are made while a script runs: found, needed, and of no checkpoint's name."""

import errno
import itertools
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from m5ws.checkpoints import listing
from m5ws.errors import Fenced, Misplaced
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import CheckpointPublished, OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.repository import bindings, checkpoints, outputs, publishing, runs
from m5ws.repository.files import index, writer
from m5ws.repository.files.chunking import read_chunks
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc, roots
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.reproduce import refusals
from m5ws.runs import history, state
from m5ws.runs.outputs import copies, restored_outputs, saved_outputs, unrecorded
from m5ws.store.local import LocalStore
from tests.support.records import planted

_RUN = "a" * 12


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_bytes(b"1" * 100_000)
    (tmp_path / "out" / "log.txt").write_text("one")
    return tmp_path / "out"


def _begun(repo: Repository, folder: Path) -> Run:
    """Return a run whose first attempt has begun. `folder` gets its code."""
    (folder / "code").mkdir()
    pinned = planted.publish(repo, planted.snapshot(planted.tree(repo, folder / "code", {"x.py": "1"})))
    run = planted.run(repo, _RUN, pinned)
    planted.begin(repo, _RUN, 1)
    return run


def _copying(repo: Repository, written: Path, run: Run, minutes: float | None = 0.0) -> copies.OutputCopier:
    def files() -> list[SourceFile]:
        return [SourceFile(path=b"out/" + path.name.encode(), location=path) for path in written.iterdir()]

    work = written.parent
    return copies.OutputCopier(repo, run, 1, minutes, work, work / "request", work / "index", files)


def test_a_requested_copy_is_made_once_without_an_interval(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _begun(repo, tmp_path)
    copying, request = _copying(repo, written, run, minutes=None), written.parent / "request"
    assert copying.copy() is None and outputs.names(repo, _RUN) == []
    request.touch()
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000"] and not request.exists()
    (written / "log.txt").write_text("two")
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000"]
    # A copy that fails is requested again, and waits.
    request.touch()
    broken = written / "model.bin"
    broken.rename(tmp_path / "model.bin")
    broken.symlink_to("nowhere")
    assert copying.copy() is not None and not request.exists()
    # So is one that fails by the clock while a request waits.
    monkeypatch.setattr(copying, "_interval_s", 0.0)
    assert copying.copy() is not None
    monkeypatch.setattr(copying, "_interval_s", 3600.0)
    broken.unlink()
    (tmp_path / "model.bin").rename(broken)
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000"]
    monkeypatch.setattr(copying, "_wait_s", 0.0)
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000", "0001-000001"]
    # The files of a replay are stored at its end alone.
    replay = msgspec.structs.replace(run, id="b" * 12, purpose="replay")
    request.touch()
    assert _copying(repo, written, replay, minutes=None).copy() is None and outputs.names(repo, "b" * 12) == []


def test_each_file_is_read_once(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, sizes = _copying(repo, written, _begun(repo, tmp_path)), list[int]()

    def counted(descriptor: int, *arguments: Any) -> Any:
        sizes.append(os.fstat(descriptor).st_size)
        return read_chunks(descriptor, *arguments)

    monkeypatch.setattr(writer, "read_chunks", counted)
    large = repo.objects.format.small_bytes
    for number in range(3):
        (written / f"step-{number}.pt").write_bytes(b"1" * (large + number))
        # A file that was just written may change without a trace.
        time.sleep(0.05)
        assert copying.copy() is None
    assert [size for size in sizes if size >= large] == [large, large + 1, large + 2]
    # A file that was replaced is read again.
    (written / "step-0.pt").write_bytes(b"2" * large)
    time.sleep(0.05)
    assert copying.copy() is None and sizes[-1] == large
    stored = restored_outputs.newest(repo, _RUN)
    assert stored is not None
    restored_outputs.restore(repo, stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "step-0.pt").read_bytes() == b"2" * large


def test_a_copy_that_fails_reads_no_file_twice(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the more checkpoints there are, the longer the newest one would have to stay as it is."""
    copying, names, stored = _copying(repo, written, _begun(repo, tmp_path)), list[str](), saved_outputs.content
    for number in range(3):
        np.save(written / f"step-{number}.npy", np.full(repo.objects.format.small_bytes, number))
    time.sleep(0.05)

    def counted(descriptor: int, *arguments: Any) -> Any:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        return read_chunks(descriptor, *arguments)

    def replaced(*arguments: Any) -> Any:
        found = stored(*arguments)
        np.save(tmp_path / "new.npy", np.full(repo.objects.format.small_bytes, len(names)))
        (tmp_path / "new.npy").replace(written / "step-2.npy")
        return found

    monkeypatch.setattr(writer, "read_chunks", counted)
    monkeypatch.setattr(saved_outputs, "content", replaced)
    assert "written while it was stored" in (copying.copy() or "") and names.count("step-2.npy") == copies._TRIES
    monkeypatch.setattr(saved_outputs, "content", stored)
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000"]
    assert names.count("step-0.npy") == names.count("step-1.npy") == 1


def test_a_copy_without_space_for_its_index_is_made(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    copying = _copying(repo, written, _begun(repo, tmp_path))
    time.sleep(0.05)
    monkeypatch.setattr(index, "write_atomically", full)
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000"]


def test_a_copy_whose_publication_was_not_answered_is_followed_by_others(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, create = _copying(repo, written, _begun(repo, tmp_path)), publishing.create_once

    def unanswered(*arguments: Any) -> None:
        create(*arguments)
        raise TimeoutError("no answer")

    monkeypatch.setattr(publishing, "create_once", unanswered)
    assert copying.copy() == "no answer"
    monkeypatch.setattr(publishing, "create_once", create)
    (written / "log.txt").write_text("two")
    assert copying.copy() is None and outputs.names(repo, _RUN) == ["0001-000000", "0001-000001"]


def test_a_request_that_cannot_be_removed_is_an_error_of_the_copy(
    repo: Repository, written: Path, tmp_path: Path
) -> None:
    copying, request = _copying(repo, written, _begun(repo, tmp_path), minutes=None), written.parent / "request"
    request.mkdir()
    assert copying.copy() is not None and outputs.names(repo, _RUN) == []


@pytest.mark.parametrize(
    ("labels", "replaced"),
    [
        ([], []),
        (["0001-000000", "0001-000001"], ["0001-000000"]),
        (["0001-000000", "0001-000001", "0001-final", "0002-000000"], ["0001-000000", "0001-000001"]),
        # The first attempt was lost. Its last copy shows which files were there before the second one.
        (["0001-000000", "0001-000001", "0002-000000", "0002-final"], ["0001-000000", "0002-000000"]),
    ],
)
def test_a_copy_is_replaced_by_a_newer_one_of_its_attempt(labels: list[str], replaced: list[str]) -> None:
    assert outputs.superseded(labels[::-1]) == replaced


def test_a_file_that_is_removed_while_the_files_are_copied_is_left_out(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework saves a checkpoint, and removes the one before."""
    run = _begun(repo, tmp_path)
    copying, record = _copying(repo, written, run), saved_outputs.record

    def late(*arguments: Any) -> OutputFiles | None:
        (written / "log.txt").unlink(missing_ok=True)
        return record(*arguments)

    monkeypatch.setattr(saved_outputs, "record", late)
    assert copying.copy() is None
    stored = outputs.find(repo, _RUN, "0001-000000")[1].content
    assert list(restored_outputs.files(repo, stored)) == [b"out/model.bin"]


def test_copies_are_made_when_something_changed_and_found_until_the_end(
    repo: Repository, written: Path, tmp_path: Path
) -> None:
    run = _begun(repo, tmp_path)
    copying = _copying(repo, written, run)
    assert [copying.copy(), copying.copy()] == [None, None]
    (written / "log.txt").write_text("two")
    os.utime(written / "model.bin", (2000.5, 1000.5))
    assert copying.copy() is None
    assert outputs.names(repo, _RUN) == ["0001-000000", "0001-000001"] and checkpoints.names(repo, _RUN) == []
    stored = restored_outputs.newest(repo, _RUN)
    assert stored is not None and not stored.final
    restored_outputs.restore(Repository.open(LocalStore(Path(repo.store.url))), stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "log.txt").read_text() == "two"
    for name in ("log.txt", "model.bin"):
        assert (tmp_path / "work" / "out" / name).stat().st_mtime == (written / name).stat().st_mtime
    needed = roots.read(repo, RetentionRules(), lambda *_: True).reach.digests
    for name in outputs.names(repo, _RUN):
        content = outputs.find(repo, _RUN, name)[1].content
        # Of two copies the newer one alone is needed.
        assert (bytes.fromhex(content) in needed) == (name == "0001-000001")
    other = Repository.create(LocalStore(tmp_path / "other"))
    transfer.copy(repo, other, [("run", _RUN)])
    assert outputs.names(other, _RUN) == outputs.names(repo, _RUN)
    assert [one.key for one in fsck.check(other, read_data=True).damage if "outputs" in one.key] == []


def test_nothing_is_copied_without_a_time_or_by_an_attempt_that_was_superseded(repo: Repository, written: Path) -> None:
    run = planted.run(repo, _RUN)
    for attempt in (1, 2):
        planted.begin(repo, _RUN, attempt)
    assert _copying(repo, written, run, None).copy() is None
    assert "superseded" in (_copying(repo, written, run).copy() or "")
    assert outputs.names(repo, _RUN) == []
    assert restored_outputs.newest(repo, _RUN) is None
    copy = OutputFiles(run=_RUN, snapshot="0" * 64, attempt=1, moment="000000", content="0" * 64)
    with pytest.raises(Fenced):
        outputs.publish(repo, copy)


def _publish(repo: Repository, folder: Path, number: int | None, attempt: int = 1) -> Digest:
    """Publish output files, of which each has a text of its own; return the digest of their content."""
    path = folder / "text"
    path.write_text(f"{attempt} {number}")
    run = runs.load(repo, _RUN)
    files = [SourceFile(path=b"out/text", location=path)]
    content = saved_outputs.content(repo, run, files)
    moment = outputs.FINAL if number is None else f"{number:06d}"
    record = OutputFiles(run=_RUN, snapshot=run.snapshot, attempt=attempt, moment=moment, content=content)
    outputs.publish(repo, record)
    return content


@pytest.fixture
def begun(repo: Repository, tmp_path: Path) -> Repository:
    """A store with a run whose first attempt has begun."""
    (tmp_path / "code").mkdir()
    pinned = planted.publish(repo, planted.snapshot(planted.tree(repo, tmp_path / "code", {"x.py": "1"})))
    planted.run(repo, _RUN, pinned)
    planted.begin(repo, _RUN, 1)
    return repo


def _collect(repo: Repository, rules: RetentionRules) -> tuple[int, int]:
    """Plan and delete with no grace; return how many checkpoints and copies were deleted."""
    planned = gc.plan(repo, rules, -60.0)
    if planned.id is None:
        return 0, 0
    done = execute.execute(repo, planned.id, "lock", grace_s=0.0)
    assert (planned.plan.checkpoints, planned.plan.copies) == (done.checkpoints, done.copies)
    return done.checkpoints, done.copies


@pytest.mark.parametrize("rules", [RetentionRules(), RetentionRules(last=1)])
def test_gc_retires_copies_that_newer_output_files_replace_and_no_final_one(
    begun: Repository, tmp_path: Path, rules: RetentionRules
) -> None:
    copies = [_publish(begun, tmp_path, number) for number in range(3)]
    assert _collect(begun, rules) == (0, 2)
    assert outputs.names(begun, _RUN) == ["0001-000002"]
    assert begun.objects.has(copies[2]) and not begun.objects.has(copies[0])
    finals = [_publish(begun, tmp_path, None)]
    planted.begin(begun, _RUN, 2)
    _publish(begun, tmp_path, 0, attempt=2)
    # Final output files are evidence. A resume restores the newest files.
    assert _collect(begun, rules) == (0, 1)
    assert outputs.names(begun, _RUN) == ["0001-final", "0002-000000"]
    finals.append(_publish(begun, tmp_path, None, attempt=2))
    assert _collect(begun, rules) == (0, 1)
    assert _collect(begun, rules) == (0, 0)
    assert outputs.names(begun, _RUN) == ["0001-final", "0002-final"]
    assert all(map(begun.objects.has, finals))
    report = fsck.check(begun, read_data=True)
    assert report.clean and report.unreachable == 0


def test_a_copy_that_became_the_newest_since_a_plan_named_it_stays(begun: Repository, tmp_path: Path) -> None:
    for number in range(2):
        _publish(begun, tmp_path, number)
    planned = str(gc.plan(begun, RetentionRules(), -60.0).id)
    begun.store.delete(outputs.key(_RUN, "0001-000001"))
    assert execute.execute(begun, planned, "lock", grace_s=0.0).copies == 0
    assert outputs.names(begun, _RUN) == ["0001-000000"] and fsck.check(begun).clean


def test_output_files_of_older_builds_are_read_and_are_no_checkpoints(begun: Repository, tmp_path: Path) -> None:
    planted.checkpoint(begun, _RUN, 30, Content(format="dcp/1", world=1))
    path = tmp_path / "text"
    path.write_text("old")
    content = saved_outputs.content(begun, runs.load(begun, _RUN), [SourceFile(path=b"out/text", location=path)])
    record = Checkpoint(run=_RUN, snapshot=runs.load(begun, _RUN).snapshot, attempt=1, step=31, content=content)
    copy = begun.objects.put_record(msgspec.structs.replace(record, step=0))
    begun.store.create(outputs.key(_RUN, "0001-000000"), f"{copy}\n".encode())
    digest = checkpoints.publish(begun, record)
    event = CheckpointPublished(step=30, name=checkpoints.name(31, 1), checkpoint=digest, content=content, outputs=True)
    planted.append(begun, _RUN, 1, ledger.LAUNCHER, event)
    stored = restored_outputs.newest(begun, _RUN)
    assert stored is not None and stored.final and stored.content == content
    rows = restored_outputs.listing(begun, _RUN, state.load(begun, _RUN))
    assert [(row.name, row.final) for row in rows] == [("0000000031-0001", True), ("0001-000000", False)]
    assert [row.step for row in listing.list_checkpoints(begun, _RUN)] == [30]
    assert history.load(begun, _RUN).outputs == content
    assert fsck.check(begun, read_data=True).clean
    assert _collect(begun, RetentionRules(last=1)) == (0, 0)
    # An attempt of this build comes later.
    planted.begin(begun, _RUN, 2, inherits=tuple(checkpoints.valid(begun, _RUN)))
    newer = _publish(begun, tmp_path, None, attempt=2)
    stored = restored_outputs.newest(begun, _RUN)
    assert stored is not None and (stored.attempt, stored.content) == (2, newer)


def test_an_attempt_that_was_killed_before_it_named_its_output_files_is_told_of_them(
    begun: Repository, tmp_path: Path
) -> None:
    content = _publish(begun, tmp_path, None)
    (event,) = unrecorded.events(begun, _RUN, 1)
    assert isinstance(event, OutputsStored) and (event.name, event.content) == ("0001-final", content)
    planted.append(begun, _RUN, 1, ledger.LAUNCHER, event)
    assert [*unrecorded.events(begun, _RUN, 1)] == []
    assert history.load(begun, _RUN).outputs == content


def test_output_files_under_another_key_are_misplaced(begun: Repository, tmp_path: Path) -> None:
    root = Path(begun.store.url)
    first = _publish(begun, tmp_path, None)
    planted.begin(begun, _RUN, 2)
    for number in (0, 1, None):
        _publish(begun, tmp_path, number, attempt=2)
    stored = OutputsStored(
        name="0001-final", record=bindings.line(begun.store, outputs.key(_RUN, "0001-final")), content=first
    )
    planted.append(begun, _RUN, 1, ledger.LAUNCHER, stored)
    assert fsck.check(begun).clean
    names = outputs.names(begun, _RUN)
    for one, other in itertools.permutations(names, 2):
        path, line = root / outputs.key(_RUN, one), begun.store.get(outputs.key(_RUN, other))
        before = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(line)
        with pytest.raises(Misplaced):
            outputs.find(begun, _RUN, one)
        damage = [(found.kind, found.key) for found in fsck.check(begun).damage]
        assert damage == [("misplaced", outputs.key(_RUN, one))]
        path.write_bytes(before)
    # A record that belongs under the key, and is not the one that the ledger recorded.
    forged = OutputFiles(run=_RUN, snapshot="0" * 64, attempt=1, moment=outputs.FINAL, content=first)
    path = root / outputs.key(_RUN, "0001-final")
    path.write_text(f"{begun.objects.put_record(forged)}\n")
    (found,) = fsck.check(begun).damage
    assert (found.kind, found.key) == ("misplaced", outputs.key(_RUN, "0001-final")) and "modified" in found.detail


def test_output_files_that_the_store_lost_or_exchanged_are_named_and_no_replay_is_compared_with_them(
    begun: Repository, tmp_path: Path
) -> None:
    content, where = _publish(begun, tmp_path, None), outputs.key(_RUN, "0001-final")
    stored = OutputsStored(name="0001-final", record=bindings.line(begun.store, where), content=content)
    planted.append(begun, _RUN, 1, ledger.LAUNCHER, stored)
    original = history.load(begun, _RUN)
    assert fsck.check(begun).clean and refusals.foreign_outputs(begun, _RUN, original) is None
    begun.store.delete(where)
    assert [(found.kind, found.key) for found in fsck.check(begun).damage] == [("missing", where)]
    assert "missing in the store" in str(refusals.foreign_outputs(begun, _RUN, original))
    other, snapshot = _publish(begun, tmp_path, 0), runs.load(begun, _RUN).snapshot
    outputs.publish(begun, OutputFiles(run=_RUN, snapshot=snapshot, attempt=1, moment=outputs.FINAL, content=other))
    assert [(found.kind, found.key) for found in fsck.check(begun).damage] == [("misplaced", where)]
    assert "was modified" in str(refusals.foreign_outputs(begun, _RUN, original))
