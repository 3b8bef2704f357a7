"""State of working trees in real git repositories."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.snapshot.sources.git import Git, GitError, without_credentials
from m5ws.snapshot.sources.interface import SourceState
from tests.support.workspace.checkouts import commit_all, git


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit of a.py and pkg/b.py."""
    root = tmp_path / "w"
    write(root, "a.py", "pkg/b.py")
    commit_all(root)
    return root


def state(root: Path) -> SourceState:
    return Git().state(root)


def test_the_state_of_a_clean_tree_has_files_commit_and_branch(tree: Path) -> None:
    state_now = state(tree)
    assert state_now.files == (b"a.py", b"pkg/b.py")
    assert (state_now.commit, state_now.branch, state_now.changed) == (git(tree, "rev-parse", "HEAD"), "main", ())


def test_the_working_tree_counts_not_the_index(tree: Path) -> None:
    write(tree, "new.py", "staged.py")
    git(tree, "add", "staged.py")
    (tree / "staged.py").write_text("later")
    (tree / "a.py").unlink()
    (tree / ".gitignore").write_text("*.log\n")
    write(tree, "x.log")
    state_now = state(tree)
    assert state_now.files == (b".gitignore", b"new.py", b"pkg/b.py", b"staged.py")
    assert state_now.changed == (b".gitignore", b"a.py", b"new.py", b"staged.py")


def test_a_file_that_was_removed_from_the_index_alone_is_captured(tree: Path) -> None:
    git(tree, "rm", "-q", "--cached", "a.py")
    assert state(tree).files == (b"a.py", b"pkg/b.py")


def test_a_renamed_file_and_an_intent_to_add_are_listed(tree: Path) -> None:
    git(tree, "mv", "a.py", "c.py")
    write(tree, "soon.py")
    git(tree, "add", "-N", "soon.py")
    assert state(tree).files == (b"c.py", b"pkg/b.py", b"soon.py")


def test_files_replaced_by_folders_and_folders_replaced_by_links_are_listed(tree: Path) -> None:
    (tree / "a.py").unlink()
    write(tree, "a.py/inner.py", "elsewhere/b.py")
    (tree / "pkg" / "b.py").unlink()
    (tree / "pkg").rmdir()
    (tree / "pkg").symlink_to("elsewhere")
    assert state(tree).files == (b"a.py/inner.py", b"elsewhere/b.py", b"pkg")


def test_a_repository_without_commits_has_a_branch_and_changed_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    write(tmp_path, "a.py", "b.py")
    git(tmp_path, "add", "a.py")
    state_now = state(tmp_path)
    assert (state_now.commit, state_now.branch) == (None, "trunk")
    assert state_now.files == (b"a.py", b"b.py")
    assert state_now.changed == (b"a.py", b"b.py")


def test_a_detached_head_has_a_commit_and_no_branch(tree: Path) -> None:
    git(tree, "checkout", "-q", "--detach")
    state_now = state(tree)
    assert (state_now.branch, state_now.commit) == (None, git(tree, "rev-parse", "HEAD"))


def test_a_merge_conflict_lists_each_file_once(tree: Path) -> None:
    git(tree, "checkout", "-q", "-b", "side")
    (tree / "a.py").write_text("side")
    git(tree, "commit", "-q", "-a", "-m", "side")
    git(tree, "checkout", "-q", "main")
    (tree / "a.py").write_text("main")
    git(tree, "commit", "-q", "-a", "-m", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(tree, "merge", "side")
    state_now = state(tree)
    assert (state_now.files, state_now.changed) == ((b"a.py", b"pkg/b.py"), (b"a.py",))


def test_submodules_and_nested_repositories_are_recursed_into(tree: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    write(library, "lib.py", "deep/more.py")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "library")
    git(tree, "submodule", "add", "-q", str(library), "vendor/library")
    git(tree, "commit", "-q", "-m", "submodule")
    assert state(tree).changed == ()
    write(tree, "vendor/library/untracked.py", "nested/own.py", "nested/ignored.log", "nested/sub/own.py")
    git(tree / "nested", "init", "-q")
    git(tree / "nested/sub", "init", "-q")
    (tree / "nested/.gitignore").write_text("*.log\n")
    state_now = state(tree)
    assert state_now.files == (
        b".gitmodules",
        b"a.py",
        b"nested/.gitignore",
        b"nested/own.py",
        b"nested/sub/own.py",
        b"pkg/b.py",
        b"vendor/library/deep/more.py",
        b"vendor/library/lib.py",
        b"vendor/library/untracked.py",
    )
    assert state_now.changed == (b"nested", b"vendor/library")


def test_a_submodule_that_is_not_checked_out_is_named(tree: Path, tmp_path: Path) -> None:
    git(tree, "submodule", "add", "-q", str(tree), "copy")
    git(tree, "commit", "-q", "-m", "submodule")
    git(tmp_path, "clone", "-q", str(tree), "clone")
    state_now = state(tmp_path / "clone")
    assert state_now.files == (b".gitmodules", b"a.py", b"pkg/b.py")
    (note,) = state_now.notes
    assert note.startswith("submodule copy is not checked out")


def test_a_sparse_checkout_has_the_files_on_disk(tree: Path) -> None:
    write(tree, "big/data.py")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "big")
    git(tree, "sparse-checkout", "set", "pkg")
    assert state(tree).files == (b"a.py", b"pkg/b.py")
    git(tree, "sparse-checkout", "set", "--no-cone", "/pkg/")
    assert state(tree).files == (b"pkg/b.py",)
    write(tree, "big/data.py")
    assert state(tree).files == (b"big/data.py", b"pkg/b.py")


def test_assume_unchanged_hides_no_deletion(tree: Path) -> None:
    git(tree, "update-index", "--assume-unchanged", "a.py")
    assert state(tree).files == (b"a.py", b"pkg/b.py")
    (tree / "a.py").unlink()
    assert state(tree).files == (b"pkg/b.py",)


def test_a_git_worktree_has_its_own_files_and_branch(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "topic")
    state_now = state(tmp_path / "other")
    assert (state_now.files, state_now.branch) == ((b"a.py", b"pkg/b.py"), "topic")


def test_a_workspace_in_a_subdirectory_has_only_the_files_below(tree: Path) -> None:
    write(tree, "pkg/new ä.py")
    (tree / "a.py").write_text("changed outside")
    state_now = state(tree / "pkg")
    assert (state_now.files, state_now.changed) == ((b"b.py", "new ä.py".encode()), ("new ä.py".encode(),))
    assert state_now.commit == git(tree, "rev-parse", "HEAD")


def test_a_workspace_that_its_repository_ignores_is_a_plain_folder(tree: Path) -> None:
    (tree / ".gitignore").write_text("scratch/\n")
    write(tree, "scratch/w/train.py")
    state_now = state(tree / "scratch" / "w")
    assert (state_now.files, state_now.commit) == ((b"train.py",), None)
    assert "plain folder" in state_now.notes[0]


def test_a_folder_without_a_repository_lists_all_files_and_links(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".gitignore", "sub/b.log", ".m5ws/store/x", "sub/.m5ws/y")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "link").symlink_to("sub")
    os.mkfifo(tmp_path / "pipe")
    state_now = state(tmp_path)
    assert state_now.files == (b".gitignore", b"a.py", b"link", b"sub/b.log")
    (note,) = state_now.notes
    assert note.startswith("pipe ")


def test_files_of_m5ws_are_never_captured_even_if_tracked(tree: Path) -> None:
    write(tree, ".m5ws/index", "pkg/.m5ws/store/format")
    git(tree, "add", "-f", ".")
    assert state(tree).files == (b"a.py", b"pkg/b.py")


def test_reading_the_state_writes_nothing_into_the_repository(tree: Path) -> None:
    os.utime(tree / "a.py", (1, 1))
    before = {path: path.stat().st_mtime_ns for path in (tree / ".git").rglob("*")}
    state(tree)
    assert {path: path.stat().st_mtime_ns for path in (tree / ".git").rglob("*")} == before


def test_no_program_of_the_repository_is_started(tree: Path, tmp_path: Path) -> None:
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(program))
    state(tree)
    assert not (tmp_path / "started").exists()


def test_variables_of_a_git_hook_do_not_name_the_repository(tree: Path, tmp_path: Path) -> None:
    hooked = tmp_path / "hooked"
    hooked.mkdir()
    git(hooked, "init", "-q")
    in_hook = Git(
        {**os.environ, "GIT_DIR": str(hooked / ".git"), "GIT_INDEX_FILE": "/nowhere", "GIT_WORK_TREE": str(hooked)}
    )
    assert in_hook.state(tree).files == (b"a.py", b"pkg/b.py")


def test_git_settings_of_the_user_do_not_change_the_state(tree: Path) -> None:
    write(tree, "sub/dir/new.py")
    for name, value in (
        ("status.showUntrackedFiles", "no"),
        ("status.relativePaths", "true"),
        ("core.quotePath", "true"),
        ("status.branch", "false"),
        ("color.ui", "always"),
    ):
        git(tree, "config", name, value)
    assert state(tree).files == (b"a.py", b"pkg/b.py", b"sub/dir/new.py")
    assert state(tree / "sub").files == (b"dir/new.py",)


def test_the_error_of_a_broken_repository_quotes_git(tree: Path) -> None:
    (tree / ".git" / "index").write_bytes(b"nonsense")
    with pytest.raises(GitError, match="index"):
        state(tree)


def test_a_missing_git_is_an_error_with_a_hint(tree: Path) -> None:
    with pytest.raises(GitError, match="PATH"):
        Git({"PATH": "/nonexistent"}).state(tree)


def test_the_recorded_remote_is_the_remote_of_the_branch(tree: Path) -> None:
    git(tree, "config", "user.name", "Grace")
    git(tree, "config", "user.email", "grace@example.org")
    git(tree, "remote", "add", "origin", "https://user:secret@example.org/origin.git?private_token=abc")
    assert state(tree).remote == "https://example.org/origin.git"
    git(tree, "remote", "add", "fork", "git@example.org:fork.git")
    git(tree, "config", "branch.main.remote", "fork")
    state_now = state(tree)
    assert (state_now.remote, state_now.author) == ("git@example.org:fork.git", "Grace <grace@example.org>")


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://token@github.com/o/r", "https://github.com/o/r"),
        ("https://user:pa:ss@host:8443/o/r.git#x", "https://host:8443/o/r.git"),
        ("https://us@er:p@ss@host/r", "https://host/r"),
        ("ssh://git:pass@host:22/r", "ssh://git@host:22/r"),
        ("git+ssh://git@host/r", "git+ssh://git@host/r"),
        ("git@github.com:o/r.git", "git@github.com:o/r.git"),
        ("user:password@host:o/r.git", "user@host:o/r.git"),
        ("http://host/r?access_token=1&x=2", "http://host/r"),
        ("/srv/git/r@2.git", "/srv/git/r@2.git"),
        ("../r", "../r"),
    ],
)
def test_credentials_are_removed_from_remote_urls(url: str, plain: str) -> None:
    assert without_credentials(url) == plain


def _name() -> st.SearchStrategy[bytes]:
    usual = st.text("aé字 \n\"'\\\t*?[]#!-~:", min_size=1, max_size=8).map(str.encode)
    component = st.one_of(usual, st.binary(min_size=1, max_size=8)).filter(
        lambda name: (
            not {0, 47} & set(name)
            and name not in (b".", b"..")
            and not any(own in name.lower() for own in (b"git", b"m5ws"))
        )
    )
    return st.lists(component, min_size=1, max_size=3).map(b"/".join)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(_name(), min_size=1, max_size=6), st.data())
def test_files_with_any_name_are_listed(
    tmp_path_factory: pytest.TempPathFactory, names: set[bytes], data: st.DataObject
) -> None:
    root = os.fsencode(tmp_path_factory.mktemp("names"))
    git(Path(os.fsdecode(root)), "init", "-q")
    made = set()
    for name in sorted(names):
        path = os.path.join(root, name)
        if any(
            os.path.isfile(os.path.join(root, *name.split(b"/")[:depth])) for depth in range(1, name.count(b"/") + 1)
        ):
            continue
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(b"x")
            made.add(name)
    for name in data.draw(st.sets(st.sampled_from(sorted(made)))):
        subprocess.run([b"git", b"--literal-pathspecs", b"add", b"-f", b"--", name], cwd=root, check=True)
    assert set(state(Path(os.fsdecode(root))).files) == made
