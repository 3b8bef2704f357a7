"""Ranks of an attempt that are stuck, as the leader decides.

A node suspects a rank without progress. Then all nodes take the stacks of their ranks, and the ranks vote
(supervision/vote.py). If a rank is still late, the attempt ends.
"""

import logging
import time
from collections.abc import Callable

from m5ws import secret_scan
from m5ws.agent.watcher import Watcher
from m5ws.attempts.followers import Followers
from m5ws.records.failure import EndReason
from m5ws.records.ledger import Event, Stacks
from m5ws.supervision import vote

_log = logging.getLogger(__name__)
_PATIENCE_S = 40.0
"""The longest wait for the stacks of all nodes."""


class StuckRanks:
    """Collects the stacks of all nodes. `append` takes the event with them."""

    def __init__(self, watcher: Watcher, followers: Followers, append: Callable[[Event], object]) -> None:
        self._watcher, self._followers, self._append = watcher, followers, append
        self._asked_s: float | None = None

    def look(self) -> EndReason | None:
        """Return the reason of the end if the attempt is stuck. Never waits."""
        if self._watcher.has_ended:
            return None
        if self._asked_s is None:
            if not (self._watcher.is_suspicious or self._followers.is_suspicious):
                return None
            _log.warning("a rank makes no progress: taking the stacks of all ranks")
            self._asked_s = time.monotonic()
            self._followers.take_stacks()
            self._watcher.begin()
        is_due = time.monotonic() - self._asked_s > _PATIENCE_S
        if not is_due and not (self._watcher.is_done and self._followers.have_reported):
            return None
        self._asked_s = None
        return self._judge()

    def _judge(self) -> EndReason | None:
        own = self._watcher.result()
        reports = [*([own] if own is not None else []), *self._followers.take_reports()]
        stacks = [stack for report in reports for stack in report.ranks]
        if not any(each.is_late for each in stacks):
            return None
        stacks.sort(key=lambda each: each.rank)
        found = vote.vote(stacks, self._watcher.world)
        nodes = tuple(report.node for report in reports if report.node is not None)
        self._append(Stacks(time_s=time.time(), ranks=tuple(stacks), nodes=nodes))
        first = next((each for each in stacks if each.rank in found.ranks), None)
        return EndReason(
            kind="stuck",
            problem=secret_scan.masked(vote.describe_all(stacks, found)),
            rank=first.rank if first is not None else None,
            host=first.host if first is not None else None,
            step=max(each.step for each in stacks),
            place=vote.describe_place(first) if first is not None else None,
        )
