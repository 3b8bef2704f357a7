"""History of commits: authors and messages of existing commits, and the reason for missing commits."""

from pathlib import Path

import pytest

from m5ws.diff import commit_history
from m5ws.records.commit import CommitsBetween
from m5ws.records.verdict import Change
from m5ws.repository.repository import Repository
from m5ws.snapshot.sources.git_history import GitHistory
from tests.support.records import planted
from tests.support.workspace.checkouts import git, write

_ABSENT = "0123456789" * 4


def _commit(root: Path, name: str, message: str) -> str:
    write(root, {name: message})
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def _subjects(found: CommitsBetween) -> tuple[list[str], list[str]]:
    return [commit.subject for commit in found.new], [commit.subject for commit in found.old]


def test_commits_between_two_revisions_are_listed_with_their_authors(root: Path) -> None:
    first = _commit(root, "a", "one")
    second = _commit(root, "b", "two\n\nand why")
    git(root, "checkout", "-q", "-b", "side", first)
    other = _commit(root, "c", "three")
    history = GitHistory(root)
    assert _subjects(history.between(first, second)) == (["two"], [])
    found = history.between(second, other)
    assert _subjects(found) == (["three"], ["two"]) and found.new[0].author == "Ada"
    shown = commit_history.lines(found)
    assert shown[0].startswith(f"+ {other[:10]} ") and shown[1].endswith(" Ada: two")


def test_a_long_history_is_cut_and_counted(root: Path) -> None:
    first = _commit(root, "a", "0")
    for number in range(1, 26):
        last = _commit(root, "a", str(number))
    found = GitHistory(root).between(first, last)
    assert (len(found.new), found.new_count, found.new[0].subject) == (20, 25, "25")
    assert commit_history.lines(found)[-1] == "+ and 5 more"


@pytest.mark.parametrize("name", [_ABSENT, "--output=x", "main", "-v"])
def test_a_missing_commit_is_reported_as_missing(root: Path, name: str) -> None:
    first = _commit(root, "a", "one")
    history = GitHistory(root)
    assert history.between(first, name).missing and history.between(name, first).missing
    assert "commit" in commit_history.lines(history.between(first, name))[0]
    assert sorted(path.name for path in root.iterdir()) == [".git", "a"]


def test_a_folder_without_git_and_an_empty_repository_have_no_history(root: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        assert GitHistory(folder).between(_ABSENT, _ABSENT).missing == "the workspace is not in a git repository"
    assert "commit" in (GitHistory(root).between(_ABSENT, _ABSENT[::-1]).missing or "")


def test_a_shallow_clone_is_the_reason_for_a_missing_commit(root: Path, tmp_path: Path) -> None:
    first, second = _commit(root, "a", "one"), _commit(root, "b", "two")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{root}", "shallow")
    history = GitHistory(tmp_path / "shallow")
    assert (history.between(first, second).missing or "").startswith("the clone is shallow")
    # Both commits exist here, but not the commits between them.
    git(tmp_path / "shallow", "fetch", "-q", "--depth", "1", "origin", first)
    assert (history.between(first, second).missing or "").startswith("the clone is shallow")


@pytest.mark.parametrize("damaged", ["config", "HEAD", "objects", "refs/heads/main"])
def test_a_damaged_repository_is_no_error(root: Path, damaged: str) -> None:
    first, second = _commit(root, "a", "one"), _commit(root, "b", "two")
    path = root / ".git" / damaged
    if path.is_dir():
        for file in [inner for inner in path.rglob("*") if inner.is_file()]:
            file.unlink()
            file.write_bytes(b"damaged")
    else:
        path.write_text("[damaged\n= \n")
    history = GitHistory(root)
    # HEAD and branches do not matter for commits that are named by id.
    assert history.between(first, second).missing is not None or damaged in ("HEAD", "refs/heads/main")


def test_a_hook_of_another_repository_does_not_change_the_history(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _commit(root, "a", "one"), _commit(root, "b", "two")
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert _subjects(GitHistory(root).between(first, second)) == (["two"], [])


def test_only_a_commit_change_is_detailed_with_its_history(root: Path) -> None:
    first, second = _commit(root, "a", "one"), _commit(root, "b", "two")
    made = [
        Change(part="code", name=name, old=old, new=new, detail="said")
        for name, old, new in (
            ("commit", first, f"{second} with changes"),
            ("commit", first, f"{first} with changes"),
            ("commit", "no commit", second),
            ("commit", first, _ABSENT),
            ("train.py", first, second),
        )
    ]
    details = [change.detail or "" for change in commit_history.detailed(made, GitHistory(root))]
    assert details[0].startswith("said\n+ ") and details[0].endswith("Ada: two")
    assert (details[1], details[2], details[4]) == ("said", "said", "said")
    assert (
        details[3] == "said; the history between the commits is unavailable: the repository does not have such a commit"
    )


def test_the_commits_between_two_runs_are_described_for_bisect(root: Path, repo: Repository, tmp_path: Path) -> None:
    code = planted.tree(repo, tmp_path / "code", {"train.py": "x"})
    first, second = _commit(root, "a", "one"), _commit(root, "b", "two")
    pinned = [planted.publish(repo, planted.snapshot(code, commit=commit)) for commit in (first, second, None)]
    history = GitHistory(root)
    commits = commit_history.describe_commits(repo, history, pinned[0], pinned[1])
    assert len(commits) == 1 and commits[0].endswith("Ada: two")
    assert commit_history.describe_commits(repo, history, pinned[0], pinned[0]) == ()
    assert commit_history.describe_commits(repo, history, pinned[0], pinned[2]) == ()
