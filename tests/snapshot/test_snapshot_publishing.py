"""Objects and annotations that `snapshot` writes to the store."""

import shutil
from pathlib import Path

import msgspec

from m5ws.records.environment import Observed
from m5ws.repository.files import trees
from m5ws.repository.fsck import fsck
from m5ws.repository.objects import key
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.store.local import LocalStore
from tests.support.faults.settling import settle
from tests.support.workspace.captures import SECRET, Machine, take
from tests.support.workspace.checkouts import git


def test_the_annotation_has_branch_remote_message_and_environment(root: Path, repo: Repository) -> None:
    git(root, "remote", "add", "origin", "https://ada:hunter2@example.org/r.git")
    machine = Machine()
    captured = take(root, repo, machine=machine, message=f"try {SECRET}")
    (annotation,) = snapshots.annotations(repo, captured.id)
    assert msgspec.structs.replace(annotation, key=None) == captured.annotation
    assert (annotation.branch, annotation.remote, annotation.message) == (
        "main",
        "https://example.org/r.git",
        "try ***",
    )
    assert annotation.observed is not None
    assert repo.objects.get_record(annotation.observed, Observed).facts == {"python": "3.11", "threads": "1"}


def test_a_second_annotation_is_written_only_for_new_information(root: Path, repo: Repository) -> None:
    machine = Machine()
    settle(root)
    first = take(root, repo, machine=machine)
    assert take(root, repo, machine=machine).annotated
    assert (machine.looks, len(snapshots.annotations(repo, first.id))) == (1, 1)
    take(root, repo, machine=machine, message="now with a word")
    assert [annotation.message for annotation in snapshots.annotations(repo, first.id)] == [None, "now with a word"]


def test_a_dry_run_writes_nothing_and_has_the_same_id(root: Path, repo: Repository) -> None:
    before = [stat.key for stat in repo.store.list("")]
    dry = take(root, repo, dry_run=True)
    assert [stat.key for stat in repo.store.list("")] == before
    real = take(root, repo)
    assert (dry.id, dry.new_bytes) == (real.id, real.new_bytes)


def test_a_store_that_was_lost_is_filled_again(root: Path, repo: Repository, store: LocalStore) -> None:
    first = take(root, repo)
    shutil.rmtree(store.root)
    new = Repository.create(LocalStore(store.root))
    assert take(root, new).id == first.id
    assert first.id in snapshots.ids(new)
    for tree in first.snapshot.trees.values():
        for entry in trees.load(new.objects, tree).entries:
            trees.read_file(new.objects, entry)


def test_a_snapshot_record_that_was_lost_is_written_again_without_an_index(root: Path, repo: Repository) -> None:
    settle(root)
    first = take(root, repo)
    repo.store.delete(key(first.id))
    (root / ".m5ws" / "index").unlink()
    assert take(root, repo).id == first.id
    assert fsck.check(repo).clean


def test_a_snapshot_that_a_run_took_is_observed_later(repo: Repository, root: Path) -> None:
    assert take(root, repo, observe=False).annotation.observed is None
    assert take(root, repo, observe=False).annotated
    assert take(root, repo).annotation.observed is not None
    assert take(root, repo, observe=False).annotation.observed is not None
