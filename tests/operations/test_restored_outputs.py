"""Copies of output files that are made while a script runs: found, needed, and of no checkpoint's name."""

from pathlib import Path

import pytest

import planted
from m5ws.errors import Fenced
from m5ws.gc_records import Rules
from m5ws.operations import restored_outputs, transfer
from m5ws.ports import SourceFile
from m5ws.records import Checkpoint, Run
from m5ws.repository import Repository, checkpoints, fsck, outputs, roots
from m5ws.store.local import LocalStore

_RUN = "a" * 12


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.bin").write_bytes(b"1" * 100_000)
    (tmp_path / "out" / "log.txt").write_text("one")
    return tmp_path / "out"


def _copying(repo: Repository, written: Path, run: Run, minutes: float | None = 0.0) -> restored_outputs.Copying:
    def files() -> list[SourceFile]:
        return [SourceFile(path=b"out/" + path.name.encode(), location=path) for path in written.iterdir()]

    return restored_outputs.Copying(repo, run, 1, minutes, files)


def test_copies_are_made_when_something_changed_and_found_until_the_end(
    repo: Repository, written: Path, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    pinned = planted.publish(repo, planted.snapshot(planted.tree(repo, tmp_path / "code", {"x.py": "1"})))
    run = planted.run(repo, _RUN, pinned)
    planted.begin(repo, _RUN, 1)
    copying = _copying(repo, written, run)
    assert [copying.copy(), copying.copy()] == [None, None]
    (written / "log.txt").write_text("two")
    assert copying.copy() is None
    assert outputs.names(repo, _RUN) == ["0001-000000", "0001-000001"] and checkpoints.names(repo, _RUN) == []
    stored = restored_outputs.newest(repo, _RUN)
    assert stored is not None and not stored.final
    restored_outputs.restore(Repository.open(LocalStore(Path(repo.store.url))), stored, tmp_path / "work")
    assert (tmp_path / "work" / "out" / "log.txt").read_text() == "two"
    needed = roots.read(repo, Rules(), lambda *_: True).reach.digests
    for name in outputs.names(repo, _RUN):
        assert bytes.fromhex(outputs.find(repo, _RUN, name)[1].content) in needed
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
    copy = Checkpoint(run=_RUN, snapshot="0" * 64, attempt=1, step=0, content="0" * 64)
    with pytest.raises(Fenced):
        outputs.publish(repo, copy, 0)
