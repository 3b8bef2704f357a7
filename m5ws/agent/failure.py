"""The failure of an attempt in words: ranks that died without an error, then the first error that a rank recorded.

A rank records its own error with a time. A killed rank records nothing, and its status is in the log of torchrun, whose
own exit status is always 1. The connections of the other ranks to a dead rank fail, so the dead rank comes first.
"""

import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

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

    def describe(self, statuses: Mapping[int, int]) -> str | None:
        """Return the dead ranks and the first error; None if no rank is known to have failed.

        A rank that was stopped by a signal counts only if no rank has an error of its own.
        """
        failed = sorted((end for end in self.ends.values() if end.error), key=lambda end: (end.time_s, end.rank))
        with_error = {end.rank for end in failed}
        dead = {rank: status for rank, status in statuses.items() if status and rank not in with_error}
        errors = [end for end in failed if end.signal is None] or ([] if dead else failed)
        return "; ".join([*_describe_dead(dead), *map(self._describe_error, errors[:1])]) or None

    def _describe_error(self, end: RankEnded) -> str:
        return f"{end.error} (rank {end.rank})" if self.world > 1 else f"{end.error}"


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


def _describe_dead(dead: Mapping[int, int]) -> Iterable[str]:
    for status in dict.fromkeys(dead.values()):
        ranks = sorted(rank for rank, each in dead.items() if each == status)
        named, was = (f"ranks {', '.join(map(str, ranks))}", "were") if len(ranks) > 1 else (f"rank {ranks[0]}", "was")
        memory = " (the kernel does so if memory is used up: see `dmesg`)" if status == -signal.SIGKILL else ""
        killed = f"{was} killed by {_name_signal(-status)}{memory}"
        yield f"{named} {killed if status < 0 else f'ended with status {status} without an error'}"


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
