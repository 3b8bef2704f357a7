"""Objects and annotations that `snapshot` writes to the store."""

from pathlib import Path

import msgspec

from m5ws.records.environment import Observed
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
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


def test_a_snapshot_that_a_run_took_is_observed_later(repo: Repository, root: Path) -> None:
    assert take(root, repo, observe=False).annotation.observed is None
    assert take(root, repo, observe=False).annotated
    assert take(root, repo).annotation.observed is not None
    assert take(root, repo, observe=False).annotation.observed is not None
