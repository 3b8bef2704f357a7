"""The first cause of a failed attempt: an error of a rank, a rank that died, or one that ended before the others.

When a rank dies or ends early, the next collective fails in all others, and their errors are of lost connections. Any
other error may itself be the cause of a death, as NCCL's watchdog aborts ranks. The time of a death is unknown, so such
an error is always named.
"""

import re
import signal
from collections.abc import Sequence

import msgspec

from m5ws.launch.torchrun_log import RankStatus
from m5ws.records.ledger import AnyEvent, RankEnded

_LIKELY: dict[int, str] = {
    signal.SIGKILL: "the kernel ends a process so if memory is used up, and lists it in `dmesg`",
    signal.SIGBUS: "often because /dev/shm is full",
}
"""Likely causes of signals."""
_LOST_CONNECTION = re.compile(
    r"Dist(Backend|Network|Store)?Error: |RuntimeError: .*(gloo/transport/|connectFullMesh failed|monitoredBarrier|"
    r"NCCL|ProcessGroup|Connection (closed by peer|reset by peer|was likely closed)|Broken pipe|Socket Timeout)",
    re.DOTALL,
)
"""Errors of collectives, by gloo, NCCL and the TCPStore of torch 2.13: their types, or texts of a RuntimeError.

`BrokenPipeError` and `ConnectionResetError` are of the script's own connections.
"""
_STOPPED = "stopped by SIG"


class _Rank(msgspec.Struct):
    """The time of a rank's newest event, its last step and its error. `has_ended`: its script came to an end."""

    last_s: float = 0.0
    step: int = 0
    has_ended: bool = False
    error: str = ""


class FirstCause:
    """Collects events of ranks, and returns the first cause of their failure."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def add(self, rank: str, event: AnyEvent) -> None:
        """Add an event of a rank. Events of the launcher are left out."""
        if not rank.isdigit():
            return
        known = self._ranks.setdefault(int(rank), _Rank())
        known.last_s = max(known.last_s, event.time_s)
        known.step = max(known.step, getattr(event, "step", None) or 0)
        if isinstance(event, RankEnded):
            known.has_ended, known.error = True, event.error or ""

    def describe(self, statuses: Sequence[RankStatus]) -> str | None:
        """Return the first cause; None if no rank is known to have failed."""
        failed = sorted((_order(rank.error), rank.last_s, number) for number, rank in self._ranks.items() if rank.error)
        died = [status for status in statuses if not status.is_consequence and not self._rank(status).error]
        if not failed:
            return self._describe_dead(died, with_likely=True) if died else None
        order, _, first = failed[0]
        error = self._ranks[first].error
        if died and order == 0:
            return f"{error} (rank {first}); {self._describe_dead(died, with_likely=False)}"
        if died:
            return self._describe_dead(died, with_likely=True)
        early = self._describe_early(min(self._ranks[number].step for _, _, number in failed)) if order == 1 else None
        return early or error

    def _rank(self, status: RankStatus) -> _Rank:
        return self._ranks.get(status.rank, _Rank())

    def _describe_early(self, step: int) -> str | None:
        """Return words about the ranks that ended first and without an error, at most after `step`; None without any.

        A rank that fails in the step after it has the same last step.
        """
        ended = {number: rank.step for number, rank in self._ranks.items() if rank.has_ended and not rank.error}
        first = min(ended.values(), default=step + 1)
        if first > step:
            return None
        ranks, _ = _name([number for number, last in sorted(ended.items()) if last == first])
        after = f" after step {first}," if first else ""
        return f"{ranks} ended{after} before the others"

    def _describe_dead(self, died: Sequence[RankStatus], *, with_likely: bool) -> str:
        """Return words about the ranks that died with the same status as the first of them."""
        status = died[0].status
        ranks, was = _name([each.rank for each in died if each.status == status])
        if status >= 0:
            return f"{ranks} ended with status {status} without an error"
        likely = _LIKELY.get(-status) if with_likely else None
        after = " after the end of its script" if all(self._rank(each).has_ended for each in died) else ""
        return f"{ranks} {was} ended by {_signal_name(-status)}{after}" + (f" ({likely})" if likely else "")


def _order(error: str) -> int:
    """Return the place of an error among others: 0 a cause, 1 a lost connection, 2 a rank that was stopped."""
    if error.startswith(_STOPPED):
        return 2
    return 1 if _LOST_CONNECTION.match(error) else 0


def _name(ranks: Sequence[int]) -> tuple[str, str]:
    """Return ranks in words, with the verb that follows."""
    return (f"rank {ranks[0]}", "was") if len(ranks) == 1 else (f"ranks {', '.join(map(str, ranks))}", "were")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
