"""Commits between the code of two runs or snapshots, as lines for people.

The history is read from the workspace. Without it, or in a shallow clone, the lines contain the reason instead.
"""

import datetime as dt
from collections.abc import Sequence

import msgspec

from m5ws.records.base import Digest
from m5ws.records.commit import Commit, CommitsBetween
from m5ws.records.verdict import Change
from m5ws.repository.references import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.sources.git_history import GitHistory

_SHORT = 10


def describe_commits(repo: Repository, history: GitHistory | None, old: Digest, new: Digest) -> tuple[str, ...]:
    """Return the commits between two snapshots as lines; none if both have the same, or one has none."""
    if history is None:
        return ()
    before, after = snapshots.load(repo, old).code.commit, snapshots.load(repo, new).code.commit
    return lines(history.between(before, after)) if before and after and before != after else ()


def detailed(changes: Sequence[Change], history: GitHistory | None) -> tuple[Change, ...]:
    """Return the changes, with the commits between both sides in the detail of the commit's change."""
    if history is None:
        return tuple(changes)
    is_commit = ("code", "commit")
    return tuple(
        _detailed(change, history) if (change.part, change.name) == is_commit else change for change in changes
    )


def _detailed(change: Change, history: GitHistory) -> Change:
    # Each side is a commit, and possibly a note on uncommitted changes.
    old, new = ((side or "").partition(" ")[0] for side in (change.old, change.new))
    if "no" in (old, new) or old == new:
        return change
    commits = history.between(old, new)
    separator = "\n" if commits.missing is None else "; "
    return msgspec.structs.replace(change, detail=separator.join([change.detail or "", *lines(commits)]))


def lines(commits: CommitsBetween) -> tuple[str, ...]:
    """Return commits as lines: `+` commits of the second side alone, `-` commits of the first."""
    if commits.missing is not None:
        return (f"the history between the commits is unavailable: {commits.missing}",)
    return (*_listed("+", commits.new, commits.new_count), *_listed("-", commits.old, commits.old_count))


def _listed(sign: str, commits: Sequence[Commit], count: int) -> list[str]:
    more = [f"{sign} and {count - len(commits)} more"] if count > len(commits) else []
    return [*(f"{sign} {line(commit)}" for commit in commits), *more]


def line(commit: Commit) -> str:
    """Return a commit in one line."""
    try:
        day = f"{dt.datetime.fromtimestamp(commit.authored_s, dt.UTC):%Y-%m-%d}"
    except (OSError, OverflowError, ValueError):
        # Git accepts any number of seconds as a date.
        day = "no date"
    return f"{commit.id[:_SHORT]} {day} {commit.author}: {commit.subject}"
