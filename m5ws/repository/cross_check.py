"""What a run's checkpoints and its ledger say of each other: an edit of one shows in the other.

A checkpoint names the heads that the ranks' chains had when it was made, the ledger names each checkpoint's content.
"""

from typing import TYPE_CHECKING

from m5ws.errors import UNREADABLE
from m5ws.repository import checkpoints
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.repository import Repository

if TYPE_CHECKING:
    from m5ws.records.base import Digest


def rewritten(repo: Repository, run: str) -> str | None:
    """Return in words which part of a run's ledger was computed anew after checkpoints had been made; None if none.

    A chain that does not hold together is not judged here: reading it is an error.
    """
    heads: dict[tuple[int, str], dict[Digest, str]] = {}
    for label in checkpoints.valid(repo, run):
        try:
            _, record = checkpoints.read(repo, run, label)
        except UNREADABLE:
            continue
        for rank, head in record.ledger.items():
            heads.setdefault((record.attempt, rank), {})[head] = label
    for (attempt, rank), wanted in heads.items():
        try:
            met = Chain(run, attempt, rank).follow(repo, wanted).passed
        except UNREADABLE:
            continue
        if unmet := sorted(wanted[head] for head in wanted.keys() - met.keys()):
            passed = max((checkpoints.step_of(wanted[head]) for head in met), default=0)
            return (
                f"the ledger of rank {rank} was edited after the run: it is not the one that checkpoint {unmet[0]} was "
                f"made with, so an event of steps {passed + 1}-{checkpoints.step_of(unmet[0])} is false"
            )
    return None
