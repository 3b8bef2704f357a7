"""Cross-check of a run's checkpoints and its ledger: an edit of one contradicts the other.

A checkpoint names the heads of the ranks' chains at its time. The ledger names each checkpoint's content.
"""

from typing import TYPE_CHECKING

from m5ws.errors import UNREADABLE
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository

if TYPE_CHECKING:
    from m5ws.records.base import Digest


def find_rewritten(repo: Repository, run: str) -> str | None:
    """Return a description of the part of a run's ledger that was edited after its checkpoints; None if there is none.

    A broken chain is not judged here, because reading it raises an error.
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
                f"the ledger of rank {rank} was edited after the run: checkpoint {unmet[0]} has another ledger head, "
                f"so an event of steps {passed + 1}-{checkpoints.step_of(unmet[0])} is false"
            )
    return None
