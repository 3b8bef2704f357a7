"""Copies of snapshots and runs between stores: complete, without repeats, verified, and resumed after a crash at any
write.
"""

from pathlib import Path

import pytest

from m5ws.errors import CorruptObject, UsageError
from m5ws.records.checkpoint import Content
from m5ws.records.removal import Removal
from m5ws.records.store import Format
from m5ws.repository import removals
from m5ws.repository.fsck import fsck
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, runs, snapshots
from m5ws.repository.references.ids import Kind
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import transfer
from m5ws.store.local import LocalStore
from tests.support.records import mlflow_runs as written
from tests.support.records import planted
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.stores.sleeping_store import SleepingStore

_RUN: Kind = "run"


@pytest.fixture
def other(tmp_path: Path) -> Repository:
    return Repository.create(LocalStore(tmp_path / "other"))


@pytest.fixture
def run(repo: Repository, tmp_path: Path) -> str:
    """A run with a ledger, of a snapshot with every part."""
    (tmp_path / "files").mkdir()
    made = written.publish_run(repo, written.publish_snapshot(repo, tmp_path / "files"))
    written.begin(repo, made)
    written.train(repo, made, [1, 2, 3])
    written.end(repo, made)
    return made.id


def _everything(repo: Repository) -> dict[str, bytes]:
    return {found.key: repo.store.get(found.key) for found in repo.store.list("")}


def test_copy_transfers_a_run_with_all_needed_objects(repo: Repository, other: Repository, run: str) -> None:
    copied = transfer.copy(repo, other, [(_RUN, run)])
    assert _everything(other) == _everything(repo)
    assert fsck.check(other).clean
    assert (copied.runs, copied.snapshots, copied.new_objects) == (1, 1, copied.objects)


def test_copy_skips_existing_objects(repo: Repository, other: Repository, run: str) -> None:
    transfer.copy(repo, other, [("snapshot", runs.load(repo, run).snapshot)])
    copied = transfer.copy(repo, other, [(_RUN, run)])
    assert 0 < copied.new_objects < copied.objects
    again = transfer.copy(repo, other, [(_RUN, run)])
    assert (again.new_objects, again.new_bytes, again.references) == (0, 0, 0)


def test_a_dry_run_returns_the_same_counts_and_copies_nothing(repo: Repository, other: Repository, run: str) -> None:
    planned = transfer.copy(repo, other, [(_RUN, run)], dry_run=True)
    assert list(_everything(other)) == ["format"]
    assert transfer.copy(repo, other, [(_RUN, run)]) == planned


def test_a_crash_after_any_write_leaves_a_clean_target_store(
    repo: Repository, other: Repository, run: str, tmp_path: Path
) -> None:
    for lives in range(1000):
        target = Repository.create(LocalStore(tmp_path / f"target-{lives}"))
        dying = DyingStore(target.store, lives)
        try:
            transfer.copy(repo, Repository(dying, target.format), [(_RUN, run)])
        except Died:
            assert fsck.check(target).clean
            transfer.copy(repo, target, [(_RUN, run)])
        assert _everything(target) == _everything(repo)
        if dying.lives > 0:
            assert lives > 10
            return
    pytest.fail("the copy never ended")


def test_a_damaged_object_is_not_passed_on(repo: Repository, other: Repository, run: str) -> None:
    tree = snapshots.load(repo, runs.load(repo, run).snapshot).code.tree
    damaged = Path(repo.store.url, key(tree))
    damaged.chmod(0o644)
    damaged.write_bytes(bytes(byte ^ 1 for byte in damaged.read_bytes()))
    with pytest.raises(CorruptObject, match=tree):
        transfer.copy(repo, other, [(_RUN, run)])
    assert list(_everything(other)) == ["format"]


def test_a_run_that_was_continued_in_both_stores_is_a_conflict(repo: Repository, other: Repository, run: str) -> None:
    transfer.copy(repo, other, [(_RUN, run)])
    for store, place in ((repo, "here"), (other, "there")):
        written.begin(store, runs.load(store, run), attempt=2, facts={"os": place})
    before = _everything(other)
    with pytest.raises(transfer.Conflict, match=run):
        transfer.copy(repo, other, [(_RUN, run)])
    assert _everything(other) == before


def test_copying_between_stores_of_different_formats_is_refused(repo: Repository, run: str, tmp_path: Path) -> None:
    other = Repository.create(LocalStore(tmp_path / "sha"), Format(pack_bytes=4096))
    with pytest.raises(UsageError, match="pack_bytes=4096"):
        transfer.copy(repo, other, [(_RUN, run)])


def test_a_kept_checkpoint_is_kept_in_the_target_store_too(repo: Repository, other: Repository, run: str) -> None:
    planted.checkpoint(repo, run, 3, Content(format="files/1", world=1))
    checkpoints.keep(repo, run, checkpoints.name(3, 1))
    transfer.copy(repo, other, [(_RUN, run)])
    assert checkpoints.kept(other, run) == checkpoints.kept(repo, run) == [checkpoints.name(3, 1)]
    assert fsck.check(other).clean


def _with_replay(repo: Repository, run: str) -> str:
    """Add a replay of a run to a store, remove the run alone, and return the replay's id."""
    planted.run(repo, "b" * 12, runs.load(repo, run).snapshot, purpose="reproduce", reproduces=run)
    removals.publish(repo, Removal(run=run))
    return "b" * 12


def test_a_removed_run_is_never_without_its_removal_in_a_copy_killed_at_any_write(
    repo: Repository, run: str, tmp_path: Path
) -> None:
    replay = _with_replay(repo, run)
    for lives in range(1000):
        target = Repository.create(LocalStore(tmp_path / f"target-{lives}"))
        dying = DyingStore(target.store, lives)
        try:
            transfer.copy(repo, Repository(dying, target.format), [(_RUN, replay)])
        except Died:
            assert run in removals.removed_runs(target) or run not in runs.ids(target)
            assert fsck.check(target).clean
        if dying.lives > 0:
            break
    assert run in removals.removed_runs(target) and replay in runs.ids(target)


def test_a_removal_during_a_copy_is_copied_at_its_end(repo: Repository, other: Repository, run: str) -> None:
    remove = SleepingStore(other.store, f"runs/{run}/ledger/", lambda: removals.publish(repo, Removal(run=run)))
    transfer.copy(repo, Repository(remove, other.format), [(_RUN, run)])
    assert removals.removed_runs(other) == {run}


def test_a_run_that_is_removed_in_one_store_alone_is_a_conflict_or_left_out(
    repo: Repository, other: Repository, run: str
) -> None:
    transfer.copy(repo, other, [(_RUN, run)])
    replay = _with_replay(repo, run)
    before = _everything(repo), _everything(other)
    for source, target, name in ((repo, other, replay), (other, repo, run)):
        with pytest.raises(transfer.Conflict, match=f"run {run} is removed in one of the stores"):
            transfer.copy(source, target, [(_RUN, name)])
        assert transfer.copy(source, target, [(_RUN, name)], leave_out=True).left_out == (name,)
    assert (_everything(repo), _everything(other)) == before
