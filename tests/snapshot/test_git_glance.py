"""Coverage of a glance: folders of a repository, linked worktrees, and trees that it does not cover."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.snapshot.sources import git_start
from m5ws.snapshot.sources.git import Git
from m5ws.snapshot.sources.interface import Glance


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


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


def test_two_versions_of_a_file_that_differs_are_two(tree: Path) -> None:
    (tree / "outer.py").write_text("p")
    first = glance(tree)
    status = (tree / "outer.py").stat()
    (tree / "outer.py").write_text("q")
    os.utime(tree / "outer.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert glance(tree) != first


def _submodule(tree: Path) -> None:
    git(tree.parent, "clone", "-q", str(tree), "other")
    git(tree, "submodule", "add", "-q", str(tree.parent / "other"), "sub")
    git(tree, "commit", "-q", "-m", "sub")


def _within(tree: Path) -> None:
    git(tree, "clone", "-q", str(tree), "nested")


@pytest.mark.parametrize(
    "make",
    [
        _submodule,
        _within,
        lambda tree: git(tree, "update-index", "--assume-unchanged", "outer.py"),
        lambda tree: git(tree, "update-index", "--skip-worktree", "outer.py"),
        lambda tree: git(tree, "checkout", "-q", "--orphan", "unborn"),
    ],
    ids=["submodule", "repository within", "assume unchanged", "skip worktree", "unborn branch"],
)
def test_a_tree_that_a_glance_does_not_cover_has_none_or_is_not_glanceable(
    tree: Path, make: Callable[[Path], None]
) -> None:
    assert Git().state(tree).glanceable
    make(tree)
    assert Git().glance(tree)() is None or not Git().state(tree).glanceable


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
