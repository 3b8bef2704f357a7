"""The failure of an attempt: ranks that died without an error, and the first failure that a rank recorded.

A rank records its own failure with a time. A killed rank records nothing, and its status is in the log of torchrun,
whose own exit status is always 1. The connections of the other ranks to a dead rank fail, so the dead rank comes first.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from m5ws.records.failure import EndReason
from m5ws.records.ledger import AnyEvent, RankEnded, RankStarted

_FAILURE = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
_STOPPED = re.compile(r"(?:Sending process|Unable to shutdown process) (\d+) ")
_READ_BYTES = 2**20


class Failures(msgspec.Struct):
    """The ends of ranks, and the number of ranks."""

    ends: dict[int, RankEnded] = {}
    world: int = 1

    def add(self, event: AnyEvent) -> None:
        """Add an event of a rank."""
        if isinstance(event, RankStarted):
            self.world = max(self.world, event.world)
        elif isinstance(event, RankEnded):
            self.ends[event.rank] = event

    def find_reason(self, statuses: Mapping[int, int]) -> EndReason | None:
        """Return the dead ranks and the first failure; None if no rank is known to have failed.

        A rank that was stopped by a signal counts only if no rank has a failure of its own.
        """
        ends = sorted(self.ends.values(), key=lambda end: (end.time_s, end.rank))
        failed = [(end.rank, end.failure) for end in ends if end.failure is not None]
        dead = {str(rank): status for rank, status in statuses.items() if status and rank not in dict(failed)}
        own = [(rank, failure) for rank, failure in failed if failure.signal is None] or ([] if dead else failed)
        if not dead and not own:
            return None
        rank, failure = own[0] if own else (None, None)
        return EndReason(kind="ranks failed", dead=dead, failure=failure, rank=rank if self.world > 1 else None)


def read_statuses(log: Path) -> dict[int, int]:
    """Return the exit statuses of the ranks that failed by themselves, by the log of torchrun.

    A negative status is the number of a signal. A rank that torchrun stopped, because another rank had failed, is left
    out (torch 2.13, `elastic/multiprocessing/api.py` and `errors/__init__.py`).
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return {}
    stopped = set(_STOPPED.findall(text))
    return {int(rank): int(status) for rank, status, pid in _FAILURE.findall(text) if pid not in stopped}
