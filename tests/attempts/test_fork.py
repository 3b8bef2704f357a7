"""The inputs of a fork, and the data that it keeps: names of checkpoints, gc, copies between stores, damage."""

from pathlib import Path

import msgspec
import pytest

from m5ws.attempts import fork, planning
from m5ws.errors import CorruptObject, NotFound, UsageError
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.gc import RetentionRules
from m5ws.records.run import Run
from m5ws.repository.fsck import fsck
from m5ws.repository.gc import execute, gc
from m5ws.repository.objects import key
from m5ws.repository.references import checkpoints, lineage, runs
from m5ws.repository.repository import Repository
from tests.support.records import mlflow_runs as written
from tests.support.records import planted


def _checkpoint(repo: Repository, record: Run, step: int, attempt: int = 1) -> str:
    """Publish a checkpoint with bytes of its own, and return its name."""
    data = f"{record.id} after {step} by {attempt}".encode()
    part = planted.whole(repo.objects, data)
    content = Content(format="dcp/1", world=2, common=part)
    planted.checkpoint(repo, record.id, step, content, attempt=attempt)
    return checkpoints.name(step, attempt)


@pytest.fixture
def parent(repo: Repository, tmp_path: Path) -> Run:
    """A run of 10 steps with checkpoints after 4, 8 and 9."""
    record = written.publish_run(repo, written.publish_snapshot(repo, tmp_path / "source"))
    written.begin(repo, record)
    written.train(repo, record, range(1, 11))
    for step in (4, 8, 9):
        _checkpoint(repo, record, step)
    written.end(repo, record)
    return record


def _fork(repo: Repository, text: str, **request: object) -> Run:
    return fork.new_run(repo, fork.ForkRequest(checkpoint=text, **request))  # type: ignore[arg-type]


def _collect(repo: Repository) -> None:
    """Retire all checkpoints but the newest, and delete unneeded objects."""
    while (plan := gc.plan(repo, RetentionRules(last=1), 0.0).id) is not None:
        execute.execute(repo, plan, "lock", grace_s=0.0)


def test_a_fork_has_the_settings_of_its_parent_except_for_given_options(repo: Repository, parent: Run) -> None:
    same = _fork(repo, f"{parent.id}@8")
    assert (same.snapshot, same.spec) == (parent.snapshot, parent.spec)
    assert same.parent is not None and same.parent.settings == "checkpoint"
    options = planning.RunOptions(nproc=4, checkpoint_every=2)
    other = _fork(repo, f"{parent.id}@4", overrides=("train.lr=0.1",), options=options, restart=("data",))
    assert (other.spec.nproc, other.spec.seed, other.spec.checkpoint_every) == (4, parent.spec.seed, 2)
    assert other.parent is not None
    assert (other.parent.settings, other.parent.restart) == ("script", ("data",))
    assert [change.name for change in fork.changes(repo, other)] == ["train.lr", "nproc", "checkpoint_every"]
    with pytest.raises(UsageError, match="secret"):
        _fork(repo, parent.id, options=planning.RunOptions(command=("train.py", "--token=ghp_" + "a1B2" * 9)))


def test_gc_keeps_the_start_checkpoint_of_a_fork_and_the_checkpoint_name(repo: Repository, parent: Run) -> None:
    before = _fork(repo, f"{parent.id}@4")
    runs.publish(repo, before)
    written.begin(repo, before, resume=checkpoints.name(4, 1))
    _checkpoint(repo, parent, 12)
    _collect(repo)
    assert checkpoints.names(repo, parent.id) == [checkpoints.name(step, 1) for step in (4, 12)]
    assert fsck.check(repo).clean


def test_a_fork_from_a_checkpoint_that_gc_retired_is_not_published(repo: Repository, parent: Run) -> None:
    late = _fork(repo, f"{parent.id}@4")
    _collect(repo)
    with pytest.raises(NotFound):
        runs.publish(repo, late)
    assert fsck.check(repo).clean and late.id not in runs.ids(repo)


def test_a_fork_keeps_its_start_checkpoint_without_the_reference_of_its_parent(repo: Repository, parent: Run) -> None:
    record = _fork(repo, f"{parent.id}@4")
    runs.publish(repo, record)
    # A fork that was published after the references were listed has the objects, and not the name.
    repo.store.delete(checkpoints.key(parent.id, checkpoints.name(4, 1)))
    _collect(repo)
    assert fsck.check(repo).clean
    assert record.parent is not None and repo.objects.get_record(record.parent.digest, Checkpoint).step == 4


def test_a_fork_record_with_a_false_start_checkpoint_is_refused(repo: Repository, parent: Run, tmp_path: Path) -> None:
    record = _fork(repo, f"{parent.id}@4")
    assert record.parent is not None
    lie = msgspec.structs.replace(record.parent, checkpoint=checkpoints.name(8, 1))
    with pytest.raises(CorruptObject, match=r"another key|does not match"):
        planning.plan(repo, msgspec.structs.replace(record, parent=lie), tmp_path, tmp_path, {})
    circle = msgspec.structs.replace(record, parent=msgspec.structs.replace(record.parent, run=record.id))
    assert lineage.chain(repo, circle) == ((circle.parent,), False)


def test_fsck_names_the_fork_that_a_missing_start_checkpoint_harms(repo: Repository, parent: Run) -> None:
    record = _fork(repo, f"{parent.id}@4")
    runs.publish(repo, record)
    assert record.parent is not None
    repo.store.delete(key(record.parent.digest))
    damage = fsck.check(repo).damage
    assert any(f"run {record.id}" in one.harms for one in damage if one.key == f"runs/{record.id}/run")
