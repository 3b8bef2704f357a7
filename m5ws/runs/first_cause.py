"""The first cause of a failed attempt: an error of a rank, a rank that died, or one that ended before the others.

When a rank dies or ends early, the next collective fails in all others, and their errors are of lost connections. Any
other error may itself be the cause of a death, as NCCL's watchdog aborts ranks. The time of a death is unknown, and a
text may only look like a lost connection. So the earliest error is always named too.
"""

import re
import signal
from collections.abc import Sequence

import msgspec

from m5ws.launch.torchrun_log import RankStatus
from m5ws.records.ledger import AnyEvent, RankEnded, RankStarted

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
_TIMED_OUT = re.compile(r"time[d-]? ?out|monitoredBarrier", re.IGNORECASE)
_STOPPED = "stopped by SIG"
_HANDLING = " while handling "
_EARLIEST = "the earliest error: "
_CAUSE, _LOST, _STOP = range(3)
"""The order of errors: a cause, a lost connection, and a rank that was stopped."""


class _Rank(msgspec.Struct):
    """The time of a rank's newest event, its last step and its end. `has_started`: its script has begun."""

    last_s: float = 0.0
    step: int = 0
    has_started: bool = False
    end: RankEnded | None = None

    @property
    def error(self) -> str:
        return self.end.error or "" if self.end is not None else ""

    @property
    def kind(self) -> int:
        if self.error.startswith(_STOPPED):
            return _STOP
        return _LOST if self.end is not None and _is_lost_connection(self.end) else _CAUSE


class FirstCause:
    """Collects events of ranks, and returns the first cause of their failure."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._world = 1

    def add(self, rank: str, event: AnyEvent) -> None:
        """Add an event of a rank. Events of the launcher are left out."""
        if not rank.isdigit():
            return
        known = self._ranks.setdefault(int(rank), _Rank())
        known.last_s = max(known.last_s, event.time_s)
        known.step = max(known.step, getattr(event, "step", None) or 0)
        self._world = max(self._world, int(rank) + 1)
        if isinstance(event, RankStarted):
            known.has_started, self._world = True, max(self._world, event.world)
        if isinstance(event, RankEnded):
            known.end = event

    def describe(self, statuses: Sequence[RankStatus]) -> str | None:
        """Return the first cause; None if no rank is known to have failed."""
        self._world = max([self._world, *(status.rank + 1 for status in statuses)])
        died = [each for each in statuses if not each.is_consequence and not self._rank(each.rank).error]
        failed = sorted((number for number, rank in self._ranks.items() if rank.error), key=self._place_in_time)
        stop = self._first_stop(failed, statuses)
        errors = [number for number in failed if number == stop or self._ranks[number].kind != _STOP]
        if not errors and died:
            early = self._describe_early(statuses) if died[0].status == -signal.SIGABRT else None
            return "; ".join([*([early] if early else []), self._describe_dead(died, with_likely=True)])
        if not errors:
            return self._ranks[failed[0]].error if failed else None
        first = stop if stop is not None else min(errors, key=lambda number: self._ranks[number].kind)
        texts = self._describe_error(first, died, statuses)
        if first != errors[0]:
            texts.append(f"{_EARLIEST}{self._name_error(errors[0])}")
        return "; ".join(texts)

    def _describe_error(self, first: int, died: Sequence[RankStatus], statuses: Sequence[RankStatus]) -> list[str]:
        """Return the error of the rank `first`, and the ranks that died, ended before or still ran, in words."""
        error, is_lost = self._name_error(first), self._ranks[first].kind == _LOST
        if died:
            dead = self._describe_dead(died, with_likely=is_lost)
            return [dead, f"{_EARLIEST}{error}"] if is_lost else [error, dead]
        if not is_lost:
            return [error]
        if (early := self._describe_early(statuses)) is not None:
            return [early, f"{_EARLIEST}{error}"]
        running = self._describe_running() if _TIMED_OUT.search(self._ranks[first].error) else None
        return [error, running] if running is not None else [error]

    def _place_in_time(self, number: int) -> tuple[float, int]:
        return self._ranks[number].last_s, number

    def _rank(self, number: int) -> _Rank:
        return self._ranks.get(number, _Rank())

    def _name_error(self, number: int) -> str:
        """Return the error of a rank, with the rank if there are others."""
        return self._ranks[number].error + (f" (rank {number})" if self._world > 1 else "")

    def _first_stop(self, failed: Sequence[int], statuses: Sequence[RankStatus]) -> int | None:
        """Return the rank that was stopped before all errors of others, and not by torchrun; None without one.

        If all ranks were stopped, the first of them is not known: they end at different moments.
        """
        own = {status.rank for status in statuses if not self._has_ended_by_torchrun(status)}
        if not failed or failed[0] not in own or self._ranks[failed[0]].kind != _STOP:
            return None
        are_all_stopped = all(rank.error and rank.kind == _STOP for rank in self._ranks.values())
        return None if are_all_stopped else failed[0]

    def _has_ended_by_torchrun(self, status: RankStatus) -> bool:
        """Return True if torchrun stopped a rank before its end was recorded. The process may end much later."""
        return status.is_consequence and not (status.signalled_s or 0.0) > self._rank(status.rank).last_s

    def _describe_early(self, statuses: Sequence[RankStatus]) -> str | None:
        """Return words about the ranks that ended first and without an error; None if none ended before the others.

        A rank that fails in the step after their end has the same last step.
        """
        died = {status.rank for status in statuses if not status.is_consequence}
        failed = died | {number for number, rank in self._ranks.items() if rank.error}
        step = min(self._rank(number).step for number in failed)
        unrecorded = self._ended_without_record(statuses)
        recorded = {number for number, rank in self._ranks.items() if rank.end is not None and not rank.error} - failed
        ended = {number: self._ranks[number].step for number in recorded | unrecorded}
        first = min(ended.values(), default=step + 1)
        if first > step:
            return None
        numbers = [number for number, last in sorted(ended.items()) if last == first]
        status = " with status 0" if unrecorded.issuperset(numbers) else ""
        after = f" after step {first}," if first else ""
        return f"{_name(numbers)[0]} ended{status}{after} before the others"

    def _ended_without_record(self, statuses: Sequence[RankStatus]) -> set[int]:
        """Return the ranks that ended with status 0 in the middle of their scripts: torchrun lists all that failed."""
        failed = {status.rank for status in statuses}
        started = {number for number, rank in self._ranks.items() if rank.has_started and rank.end is None}
        return started - failed if failed else set()

    def _describe_running(self) -> str | None:
        """Return words about the ranks that ran until they were stopped, with their last steps; None without any."""
        by_step: dict[int, list[int]] = {}
        for number, rank in sorted(self._ranks.items()):
            if rank.end is None or rank.kind == _STOP:
                by_step.setdefault(rank.step, []).append(number)
        texts = [
            _name(numbers)[0] + (f" (after step {step})" if step else "") for step, numbers in sorted(by_step.items())
        ]
        handling = [
            self._name_error(number)
            for number, rank in sorted(self._ranks.items())
            if rank.kind == _STOP and _HANDLING in rank.error
        ]
        return "; ".join([f"still running: {', '.join(texts)}", *handling]) if texts else None

    def _describe_dead(self, died: Sequence[RankStatus], *, with_likely: bool) -> str:
        """Return words about the ranks that died with the same status as the first of them."""
        status = died[0].status
        ranks, was = _name([each.rank for each in died if each.status == status])
        if status >= 0:
            return f"{ranks} ended with status {status} without an error"
        likely = _LIKELY.get(-status) if with_likely else None
        after = " after the end of its script" if all(self._rank(each.rank).end is not None for each in died) else ""
        return f"{ranks} {was} ended by {_signal_name(-status)}{after}" + (f" ({likely})" if likely else "")


def _is_lost_connection(end: RankEnded) -> bool:
    """Return True for an error of a collective. A RuntimeError that a `raise` statement raised is none, by any text."""
    match = _LOST_CONNECTION.match(end.error or "")
    return match is not None and not (end.raised and match[0].startswith("RuntimeError"))


def _name(ranks: Sequence[int]) -> tuple[str, str]:
    """Return ranks in words, with the verb that follows."""
    return (f"rank {ranks[0]}", "was") if len(ranks) == 1 else (f"ranks {', '.join(map(str, ranks))}", "were")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
