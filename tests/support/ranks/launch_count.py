"""The number of launches in a session of tests, counted by their logs: a fork's status lies beside its log."""

import os
from pathlib import Path

import msgspec

MOST_REAL = 12
"""Limit of the real launches in `make test`: each costs seconds of two cores. docs/testing.md lists these launches."""


class Launches(msgspec.Struct, frozen=True):
    """Launches by the launcher of users, and by forks."""

    real: int
    forked: int


def count(directory: Path) -> Launches:
    """Return the launches whose logs are below the directory of a session's temporary files.

    A log that a test wrote itself does not count: a launch has its orders in a file `context`.
    """
    # Not by `rglob`, which fails at names that are too long for this system: a test makes some.
    found = [Path(folder) / "launcher.log" for folder, _, files in os.walk(directory) if "launcher.log" in files]
    logs = [log for log in found if _has_orders(log)]
    forked = sum(log.with_suffix(".status").exists() for log in logs)
    return Launches(len(logs) - forked, forked)


def _has_orders(log: Path) -> bool:
    return any((folder / "context").exists() for folder in (log.parent, log.parent.parent))
