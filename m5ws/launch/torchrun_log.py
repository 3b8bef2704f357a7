"""Statuses of ranks in torchrun's log: torchrun alone waits for its ranks, and its own exit status is always 1.

At the end of a failed launch, torchrun prints the status of each rank that failed. Before, it prints the ranks that it
ends because another one has failed (torch 2.13, `elastic/multiprocessing/api.py` and `errors/__init__.py`).
"""

import re
import time
from datetime import datetime
from pathlib import Path

import msgspec

_FAILURE = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
_SIGNALLED = re.compile(r"(?:^.(\d{4} [\d:.]+) .*)?(?:Sending process|Unable to shutdown process) (\d+) ", re.MULTILINE)
_READ_BYTES = 2**20


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The exit status of a rank that failed: negative, the number of the signal that ended it.

    `is_consequence`: torchrun ended the rank because another one had failed, at `signalled_s` since the epoch.
    """

    rank: int
    status: int
    is_consequence: bool = False
    signalled_s: float | None = None


def read_statuses(log: Path) -> tuple[RankStatus, ...]:
    """Return the statuses of all ranks that failed, by rank; empty without a log or without a failed rank."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = file.read().decode(errors="replace")
            year = time.localtime(log.stat().st_mtime).tm_year
    except OSError:
        return ()
    return _statuses(text, year)


def _statuses(text: str, year: int) -> tuple[RankStatus, ...]:
    # The first signal to each process comes last here, and stays.
    signalled = {pid: _parse_time(moment, year) for moment, pid in reversed(_SIGNALLED.findall(text))}
    return tuple(
        RankStatus(rank=int(rank), status=int(status), is_consequence=pid in signalled, signalled_s=signalled.get(pid))
        for rank, status, pid in sorted(_FAILURE.findall(text), key=lambda failure: int(failure[0]))
    )


def _parse_time(moment: str, year: int) -> float | None:
    """Return a time of torchrun's log, local and without a year, as seconds since the epoch; None if there is none."""
    try:
        return datetime.strptime(f"{year} {moment}", "%Y %m%d %H:%M:%S.%f").astimezone().timestamp()
    except ValueError:
        return None
