"""Coverage of a glance: folders of a repository, and linked worktrees."""

import os
from pathlib import Path

import pytest

from m5ws.snapshot.sources import git_start
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.interface import Glance
from tests.support.workspace.checkouts import git


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "a.py").write_text("a")
    (root / "outer.py").write_text("o")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def glance(root: Path) -> Glance:
    result = Git().glance(root)()
    assert result is not None
    return result


def test_a_folder_of_a_repository_is_compared_without_its_siblings(tree: Path) -> None:
    before = glance(tree / "inner")
    (tree / "outer.py").write_text("p")
    (tree / "new.py").write_text("")
    assert glance(tree / "inner") == before
    (tree / "inner" / "new.py").write_text("")
    assert glance(tree / "inner") != before


def test_a_linked_worktree_has_an_index_of_its_own(tree: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(tree, "worktree", "add", "-q", str(linked))
    before = glance(linked)
    (tree / "outer.py").write_text("p")
    assert glance(linked) == before
    (linked / "outer.py").write_text("p")
    assert glance(linked) != before


def test_without_a_repository_there_is_no_glance(tmp_path: Path) -> None:
    assert Git().glance(tmp_path)() is None
    (tmp_path / ".git").mkdir()
    assert Git().glance(tmp_path)() is None


def test_a_glance_that_was_started_early_is_used_once_and_for_its_own_root(tree: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(tree, "worktree", "add", "-q", str(linked))
    before = glance(tree)
    git_start.start_early(str(tree), os.environ)
    (tree / "outer.py").write_text("p")
    assert glance(linked) != before
    assert glance(tree) != before
    git_start.start_early(str(tree), os.environ)
    assert Git({**os.environ, "GIT_CONFIG_COUNT": "0"}).glance(tree)() is not None
    git_start.start_early(str(tmp_path), os.environ)
    assert Git().glance(tmp_path)() is None
