"""The first cause of a failed attempt: a rank that died, or the first error of a rank.

When a rank dies, the next collective fails in all others, and they report that error. The rank that died reports none.
If its last event is later than the first error, that error came before its death.
"""

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


class _Rank(msgspec.Struct):
    """The time of a rank's newest event, and its error. `has_ended`: its script came to an end."""

    last_s: float = 0.0
    has_ended: bool = False
    error: str | None = None


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
        if isinstance(event, RankEnded):
            known.has_ended, known.error = True, event.error

    def describe(self, statuses: Sequence[RankStatus]) -> str | None:
        """Return the first cause; None if no rank is known to have failed."""
        errors = sorted((rank.last_s, number) for number, rank in self._ranks.items() if rank.error)
        died = [
            status
            for status in statuses
            if not status.is_consequence
            and not self._rank(status).error
            and (not errors or self._rank(status).last_s <= errors[0][0])
        ]
        if died:
            return self._describe_dead(died)
        return self._ranks[errors[0][1]].error if errors else None

    def _rank(self, status: RankStatus) -> _Rank:
        return self._ranks.get(status.rank, _Rank())

    def _describe_dead(self, died: Sequence[RankStatus]) -> str:
        """Return words about the ranks that died with the same status as the first of them."""
        status = died[0].status
        numbers = [str(each.rank) for each in died if each.status == status]
        ranks, was = (f"rank {numbers[0]}", "was") if len(numbers) == 1 else (f"ranks {', '.join(numbers)}", "were")
        if status >= 0:
            return f"{ranks} ended with status {status} without an error"
        likely = _LIKELY.get(-status)
        after = " after the end of its script" if all(self._rank(each).has_ended for each in died) else ""
        return f"{ranks} {was} ended by {_signal_name(-status)}{after}" + (f" ({likely})" if likely else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
