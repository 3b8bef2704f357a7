"""Copies of output files that are made while a script runs: found, needed, and of no checkpoint's name."""

import errno
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from m5ws.errors import Fenced, Misplaced
from m5ws.outputs import copies, restoring, saved, storing
from m5ws.outputs.collect import Outputs
from m5ws.records.base import Digest
from m5ws.records.gc import RetentionRules
from m5ws.records.ledger import NODE, OutputsStored
from m5ws.records.outputs import OutputFiles
from m5ws.records.run import Run
from m5ws.repository import bindings
from m5ws.repository.files import index
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc, roots
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.reproduce import refusals
from m5ws.runs import history
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


def _collected(files: Iterable[Path]) -> Outputs:
    found = ((path, path.stat()) for path in sorted(files))
    return Outputs(
        files=tuple(
            SourceFile(path=b"out/" + path.name.encode(), location=path, found=status) for path, status in found
        )
    )


def _copying(repo: Repository, written: Path, run: Run, minutes: float | None = 0.0) -> copies.OutputCopier:
    return copies.OutputCopier(repo, run, 1, minutes, written.parent / "index", lambda: _collected(written.iterdir()))


def _copy(copying: copies.OutputCopier) -> None:
    """Copy the files. A file that was written within a tick of the clock fails a copy."""
    while copying.copy() is not None:
        pass


def test_each_settled_file_is_uploaded_once(repo: Repository, written: Path, tmp_path: Path) -> None:
    copying, large = _copying(repo, written, _begun(repo, tmp_path)), repo.objects.format.small_bytes
    for number in range(3):
        (written / f"step-{number}.pt").write_bytes(b"%d" % number * (large + number))
        _copy(copying)
    keys = {stat.key for stat in repo.store.list("objects/")}
    (written / "step-0.pt").write_bytes(b"3" * large)
    _copy(copying)
    added = {stat.key for stat in repo.store.list("objects/")} - keys
    stats = (repo.store.stat(key) for key in added)
    assert sum(stat.size_bytes for stat in stats if stat is not None) < 2 * large
    stored = saved.newest(repo, _RUN)
    assert stored is not None
    restoring.restore(repo, stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "step-0.pt").read_bytes() == b"3" * large


def test_a_copy_is_published_despite_a_full_disk_for_its_index(
    repo: Repository, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    copying = _copying(repo, written, _begun(repo, tmp_path))
    monkeypatch.setattr(index, "write_atomically", full)
    _copy(copying)
    assert outputs.names(repo, _RUN) == ["0001-0-000000"]


@pytest.mark.parametrize(
    ("labels", "replaced"),
    [
        ([], []),
        (["0001-0-000000", "0001-0-000001"], ["0001-0-000000"]),
        (["0001-0-000000", "0001-0-000001", "0001-0-final", "0002-0-000000"], ["0001-0-000000"]),
        (["0001-0-000000", "0001-0-000001", "0002-0-000000", "0002-0-final"], ["0001-0-000000"]),
    ],
)
def test_a_newer_copy_replaces_earlier_copies_of_its_attempt(labels: list[str], replaced: list[str]) -> None:
    assert outputs.superseded(labels[::-1]) == replaced


def test_a_copy_is_made_after_a_change_and_the_newest_copy_is_restored(
    repo: Repository, written: Path, tmp_path: Path
) -> None:
    run = _begun(repo, tmp_path)
    copying = _copying(repo, written, run)
    _copy(copying)
    _copy(copying)
    (written / "log.txt").write_text("two")
    os.utime(written / "model.bin", (2000.5, 1000.5))
    _copy(copying)
    assert outputs.names(repo, _RUN) == ["0001-0-000000", "0001-0-000001"] and checkpoints.names(repo, _RUN) == []
    stored = saved.newest(repo, _RUN)
    assert stored is not None and not stored.final
    restoring.restore(Repository.open(LocalStore(Path(repo.store.url))), stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "log.txt").read_text() == "two"
    for name in ("log.txt", "model.bin"):
        assert (tmp_path / "work" / "out" / name).stat().st_mtime == (written / name).stat().st_mtime
    needed = roots.read(repo, RetentionRules(), lambda *_: True).reach.digests
    for name in outputs.names(repo, _RUN):
        content = outputs.find(repo, _RUN, name)[1].content
        # Of two copies the newer copy alone is needed.
        assert (bytes.fromhex(content) in needed) == (name == "0001-0-000001")
    other = Repository.create(LocalStore(tmp_path / "other"))
    transfer.copy(repo, other, [("run", _RUN)])
    assert outputs.names(other, _RUN) == outputs.names(repo, _RUN)
    assert [one.key for one in fsck.check(other, read_data=True).damage if "outputs" in one.key] == []


def test_no_copy_is_made_without_an_interval_or_by_a_superseded_attempt(repo: Repository, written: Path) -> None:
    run = planted.run(repo, _RUN)
    for attempt in (1, 2):
        planted.begin(repo, _RUN, attempt)
    assert _copying(repo, written, run, None).copy() is None
    superseded = _copying(repo, written, run)
    while "superseded" not in (superseded.copy() or "superseded"):
        pass
    assert outputs.names(repo, _RUN) == []
    assert saved.newest(repo, _RUN) is None
    copy = OutputFiles(run=_RUN, snapshot="0" * 64, attempt=1, node=0, moment="000000", content="0" * 64)
    with pytest.raises(Fenced):
        outputs.publish(repo, copy)


def _publish(repo: Repository, folder: Path, number: int | None, attempt: int = 1) -> Digest:
    """Publish output files, of which each has a text of its own; return the digest of their content."""
    path = folder / "text"
    path.write_text(f"{attempt} {number}")
    run = runs.load(repo, _RUN)
    files = [SourceFile(path=b"out/text", location=path)]
    content = storing.content(repo, run, files)
    modified_ns = (path.stat().st_mtime_ns,)
    moment = outputs.FINAL if number is None else f"{number:06d}"
    record = OutputFiles(
        run=_RUN,
        snapshot=run.snapshot,
        attempt=attempt,
        node=0,
        moment=moment,
        content=content,
        modified_ns=modified_ns,
    )
    outputs.publish(repo, record)
    return content


@pytest.fixture
def begun(repo: Repository, tmp_path: Path) -> Repository:
    """A store with a run whose first attempt has begun."""
    _begun(repo, tmp_path)
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
def test_gc_retires_replaced_copies_and_keeps_final_output_files(
    begun: Repository, tmp_path: Path, rules: RetentionRules
) -> None:
    copies = [_publish(begun, tmp_path, number) for number in range(3)]
    assert _collect(begun, rules) == (0, 2)
    assert outputs.names(begun, _RUN) == ["0001-0-000002"]
    assert begun.objects.has(copies[2]) and not begun.objects.has(copies[0])
    finals = [_publish(begun, tmp_path, None)]
    planted.begin(begun, _RUN, 2)
    _publish(begun, tmp_path, 0, attempt=2)
    # Final output files are evidence. The newest copy stays beside them.
    _publish(begun, tmp_path, 1, attempt=2)
    finals.append(_publish(begun, tmp_path, None, attempt=2))
    assert _collect(begun, rules) == (0, 1)
    assert _collect(begun, rules) == (0, 0)
    assert outputs.names(begun, _RUN) == ["0001-0-000002", "0001-0-final", "0002-0-000001", "0002-0-final"]
    assert all(map(begun.objects.has, finals))
    report = fsck.check(begun, read_data=True)
    assert report.clean and report.unreachable == 0


def test_gc_keeps_a_planned_copy_that_became_the_newest_copy(begun: Repository, tmp_path: Path) -> None:
    for number in range(2):
        _publish(begun, tmp_path, number)
    planned = str(gc.plan(begun, RetentionRules(), -60.0).id)
    begun.store.delete(outputs.key(_RUN, "0001-0-000001"))
    assert execute.execute(begun, planned, "lock", grace_s=0.0).copies == 0
    assert outputs.names(begun, _RUN) == ["0001-0-000000"] and fsck.check(begun).clean


def test_output_files_under_another_key_are_misplaced(begun: Repository, tmp_path: Path) -> None:
    root = Path(begun.store.url)
    first = _publish(begun, tmp_path, None)
    planted.begin(begun, _RUN, 2)
    for number in (0, 1, None):
        _publish(begun, tmp_path, number, attempt=2)
    stored = OutputsStored(
        name="0001-0-final", record=bindings.line(begun.store, outputs.key(_RUN, "0001-0-final")), content=first
    )
    planted.append(begun, _RUN, 1, NODE, stored)
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
    # A record that belongs under the key, and is not the record that the ledger recorded.
    forged = OutputFiles(run=_RUN, snapshot="0" * 64, attempt=1, node=0, moment=outputs.FINAL, content=first)
    path = root / outputs.key(_RUN, "0001-0-final")
    path.write_text(f"{begun.objects.put_record(forged)}\n")
    (found,) = fsck.check(begun).damage
    assert (found.kind, found.key) == ("misplaced", outputs.key(_RUN, "0001-0-final")) and "modified" in found.detail


def test_lost_or_exchanged_output_files_are_reported_and_block_a_comparison(begun: Repository, tmp_path: Path) -> None:
    content, where = _publish(begun, tmp_path, None), outputs.key(_RUN, "0001-0-final")
    stored = OutputsStored(name="0001-0-final", record=bindings.line(begun.store, where), content=content)
    planted.append(begun, _RUN, 1, NODE, stored)
    original = history.load(begun, _RUN)
    assert fsck.check(begun).clean and refusals.foreign_outputs(begun, _RUN, original) is None
    begun.store.delete(where)
    assert [(found.kind, found.key) for found in fsck.check(begun).damage] == [("missing", where)]
    assert "missing in the store" in str(refusals.foreign_outputs(begun, _RUN, original))
    other, snapshot = _publish(begun, tmp_path, 0), runs.load(begun, _RUN).snapshot
    outputs.publish(
        begun, OutputFiles(run=_RUN, snapshot=snapshot, attempt=1, node=0, moment=outputs.FINAL, content=other)
    )
    assert [(found.kind, found.key) for found in fsck.check(begun).damage] == [("misplaced", where)]
    assert "was modified" in str(refusals.foreign_outputs(begun, _RUN, original))
