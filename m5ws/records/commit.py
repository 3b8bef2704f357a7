"""Commits of the git repository around a workspace. They do not affect a snapshot's id."""

import msgspec


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit: its author, time, and the first line of its message."""

    id: str
    author: str
    authored_s: float
    subject: str


class CommitsBetween(msgspec.Struct, frozen=True, kw_only=True):
    """The newest commits that only one of two commits has among its ancestors, itself included, and their number.

    `missing` is the reason why the local history does not have them.
    """

    new: tuple[Commit, ...] = ()
    new_count: int = 0
    old: tuple[Commit, ...] = ()
    old_count: int = 0
    missing: str | None = None
