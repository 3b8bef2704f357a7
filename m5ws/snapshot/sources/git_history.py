"""History of commits, by GitPython.

Snapshots and verdicts do not depend on it, so a missing history is a fact and not an error. A snapshot's files come
from the git executable (`git`), which is faster (docs/design/0001).
"""

import configparser
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from m5ws import secret_gate
from m5ws.records.commit import Commit, CommitsBetween

if TYPE_CHECKING:
    from git import Commit as GitCommit
    from git import Repo

_LISTED = 20
_READS_ONLY = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


class GitHistory:
    """Commits of the repository around `root`. A missing commit is part of the result, and not an error."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def between(self, old: str, new: str) -> CommitsBetween:
        """Return the commits that only one of two commits has among its ancestors."""
        try:
            with _opened(self._root) as repo:
                for commit in (old, new):
                    _check(commit)
                    repo.commit(commit)
                _check_joined(repo, old, new)
                (added, count), (removed, gone) = _only(repo, old, new), _only(repo, new, old)
                between = CommitsBetween(new=added, new_count=count, old=removed, old_count=gone)
                return secret_gate.masked(between)
        except _Missing as error:
            return CommitsBetween(missing=str(error))


class _Missing(Exception):
    """The history does not have a commit. The message is the reason."""


@contextmanager
def _opened(root: Path) -> "Iterator[Repo]":
    """Open the repository around `root` for reading. Raises _Missing, also for errors while it is open."""
    try:
        import git
    except ImportError as error:
        raise _Missing("git is not installed") from error
    try:
        with git.Repo(root, search_parent_directories=True) as repo:
            # In a git hook, inherited variables name another repository.
            repo.git.update_environment(GIT_DIR=str(repo.git_dir), **_READS_ONLY)
            try:
                yield repo
            # GitPython raises ValueError and its kinds for names that the repository does not have.
            except (ValueError, git.ODBError, git.GitCommandError) as error:
                shallow = "the clone is shallow and " if _is_shallow(repo) else "the repository "
                raise _Missing(f"{shallow}does not have such a commit") from error
    except (git.InvalidGitRepositoryError, git.NoSuchPathError) as error:
        raise _Missing("the workspace is not in a git repository") from error
    except (git.GitError, configparser.Error, OSError) as error:
        raise _Missing(f"the repository cannot be read: {str(error).splitlines()[0]}") from error


def _check(commit: str) -> None:
    """Raise _Missing for a text from a store that is not a commit's name. Git could read it as an option."""
    if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", commit) is None:
        raise _Missing(f"{commit[:20]!r} is not the name of a commit")


def _check_joined(repo: "Repo", old: str, new: str) -> None:
    """Raise _Missing if a shallow clone ends between two commits: git would count all of its commits as between."""
    if _is_shallow(repo) and not repo.merge_base(old, new):
        raise _Missing("the clone is shallow, and ends before these commits meet")


def _is_shallow(repo: "Repo") -> bool:
    return Path(repo.common_dir, "shallow").exists()


def _only(repo: "Repo", without: str, of: str) -> tuple[tuple[Commit, ...], int]:
    """Return the newest commits that only `of` has, and the number of all."""
    span = f"{without}..{of}"
    listed = tuple(map(_commit, repo.iter_commits(span, max_count=_LISTED)))
    return listed, len(listed) if len(listed) < _LISTED else int(repo.git.rev_list("--count", span))


def _commit(commit: "GitCommit") -> Commit:
    subject = commit.summary
    return Commit(
        id=commit.hexsha,
        author=commit.author.name or commit.author.email or "unknown",
        authored_s=float(commit.authored_date),
        subject=subject.decode(errors="replace") if isinstance(subject, bytes) else subject,
    )
