"""Commits between the code of two runs or snapshots, in lines for people.

The history is read beside the store: a workspace without it, or a shallow clone, gets the reason instead.
"""

import datetime as dt
from collections.abc import Sequence

import msgspec

from m5ws.errors import M5Error
from m5ws.records.base import Digest
from m5ws.records.commit import Commit, CommitFacts, CommitsBetween
from m5ws.records.verdict import Change
from m5ws.repository import snapshots
from m5ws.repository.repository import Repository
from m5ws.snapshot.sources.interface import CommitHistory

_SHORT = 10


def facts(repo: Repository, history: CommitHistory, snapshot: Digest) -> CommitFacts | None:
    """Return the facts of a snapshot's commit; None if it has none or cannot be read."""
    try:
        commit = snapshots.load(repo, snapshot).code.commit
    except M5Error:
        return None
    return history.facts(commit) if commit else None


def between(repo: Repository, history: CommitHistory | None, old: Digest, new: Digest) -> tuple[str, ...]:
    """Return the commits between two snapshots in lines; none if both have the same, or one has none."""
    if history is None:
        return ()
    one, two = snapshots.load(repo, old).code.commit, snapshots.load(repo, new).code.commit
    return lines(history.between(one, two)) if one and two and one != two else ()


def detailed(changes: Sequence[Change], history: CommitHistory | None) -> tuple[Change, ...]:
    """Return the changes, that of the commit with the commits between both sides in its detail."""
    if history is None:
        return tuple(changes)
    return tuple(_detailed(one, history) if (one.part, one.name) == ("code", "commit") else one for one in changes)


def _detailed(change: Change, history: CommitHistory) -> Change:
    # Each side is a commit, and perhaps a word on changes that are not in it.
    old, new = ((side or "").partition(" ")[0] for side in (change.old, change.new))
    if "no" in (old, new) or old == new:
        return change
    found = history.between(old, new)
    separator = "\n" if found.missing is None else "; "
    return msgspec.structs.replace(change, detail=separator.join([change.detail or "", *lines(found)]))


def lines(found: CommitsBetween) -> tuple[str, ...]:
    """Return commits in lines: `+` those of the second side alone, `-` those of the first."""
    if found.missing is not None:
        return (f"the history between the commits is not here: {found.missing}",)
    return (*_listed("+", found.new, found.new_count), *_listed("-", found.old, found.old_count))


def _listed(sign: str, commits: Sequence[Commit], count: int) -> list[str]:
    more = [f"{sign} and {count - len(commits)} more"] if count > len(commits) else []
    return [*(f"{sign} {line(one)}" for one in commits), *more]


def line(commit: Commit) -> str:
    """Return a commit in one line."""
    try:
        day = f"{dt.datetime.fromtimestamp(commit.authored_s, dt.UTC):%Y-%m-%d}"
    except (OSError, OverflowError, ValueError):
        # Git takes any number of seconds for a date.
        day = "no date"
    return f"{commit.id[:_SHORT]} {day} {commit.author}: {commit.subject}"
