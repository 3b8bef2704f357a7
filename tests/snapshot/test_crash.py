"""Promises 1 and 4: a snapshot exists completely or not at all, after each write at which its process may die."""

from pathlib import Path

import pytest

from m5ws.records.store import Format
from m5ws.repository.fsck import fsck
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot import snapshot
from m5ws.store.local import LocalStore
from m5ws.workspace import Workspace, find
from tests.support.stores.dying_store import Died, DyingStore
from tests.support.workspace.captures import Machine
from tests.support.workspace.workspaces import make_workspace

_SMALL = Format(chunk_bytes=4096, file_chunk_bytes=4096, pack_bytes=2048, small_bytes=4096)


def _take(workspace: Workspace, repo: Repository, index: Path) -> str:
    sources = (workspace.source(), workspace.datasets(), workspace.tokenizers(), Machine())
    return snapshot.take(workspace.root, workspace.settings, repo, *sources, index).id


@pytest.mark.parametrize("same_index", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_snapshot_survives_a_crash_after_every_single_write(tmp_path: Path, same_index: bool) -> None:
    """With the index of the killed call, and without: it must not name objects that never became durable."""
    workspace = find(make_workspace(tmp_path / "w", "plain.py").root)
    for lives in range(1000):
        repo = Repository.create(LocalStore(tmp_path / f"store-{lives}"), _SMALL)
        dying = DyingStore(repo.store, lives)
        index = tmp_path / f"index-{lives}"
        try:
            _take(workspace, Repository(dying, repo.format), index)
        except Died:
            # Published with its annotation, before its keys in the index.
            published = snapshots.ids(repo)
            assert fsck.check(repo).clean
            taken = _take(workspace, repo, index if same_index else tmp_path / f"other-{lives}")
            assert published in ([], [taken])
            assert snapshots.ids(repo) == [taken] and [name for name, _ in snapshots.newest(repo)] == [taken]
        report = fsck.check(repo)
        assert report.clean and report.snapshots == 1
        if dying.lives > 0:
            assert lives >= 12
            return
    pytest.fail("the snapshot never ended")
