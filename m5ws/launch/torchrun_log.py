"""Statuses of ranks in torchrun's log: torchrun alone waits for its ranks, and its own exit status is always 1.

At the end of a failed launch, torchrun prints the status of each rank that failed. Before, it prints the ranks that it
ends because another one has failed (torch 2.13, `elastic/multiprocessing/api.py` and `errors/__init__.py`).
"""

import re
from pathlib import Path

import msgspec

_FAILURE = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
_SIGNALLED = re.compile(r"(?:Sending process|Unable to shutdown process) (\d+) ")
_READ_BYTES = 2**20


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The exit status of a rank that failed: negative, the number of the signal that ended it.

    `is_consequence`: torchrun ended the rank because another one had failed.
    """

    rank: int
    status: int
    is_consequence: bool = False


def read_statuses(log: Path) -> tuple[RankStatus, ...]:
    """Return the statuses of all ranks that failed, by rank; empty without a log or without a failed rank."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return _statuses(text)


def _statuses(text: str) -> tuple[RankStatus, ...]:
    signalled = set(_SIGNALLED.findall(text))
    return tuple(
        RankStatus(rank=int(rank), status=int(status), is_consequence=pid in signalled)
        for rank, status, pid in sorted(_FAILURE.findall(text), key=lambda failure: int(failure[0]))
    )
