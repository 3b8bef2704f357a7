"""Cross-check of a run's checkpoints and its ledger: an edit of one side contradicts the other side.

A checkpoint names the heads of the ranks at its time. The ledger names each checkpoint's content.
"""

from m5ws.errors import UNREADABLE
from m5ws.records.base import Digest
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.chains import Chain
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository


def find_rewritten(repo: Repository, run: str) -> str | None:
    """Return a description of the part of a run's ledger that was edited after its checkpoints; None if there is none.

    A broken chain is not judged here, because reading it raises an error.
    """
    heads: dict[int, dict[Digest, tuple[str, str]]] = {}
    for label in checkpoints.valid(repo, run):
        try:
            _, record = checkpoints.read(repo, run, label)
        except UNREADABLE:
            continue
        heads.setdefault(record.attempt, {}).update({head: (rank, label) for rank, head in record.ledger.items()})
    for attempt, wanted in heads.items():
        try:
            chains = [Chain(run, attempt, node).follow(repo, wanted) for node in ledger.nodes(repo, run, attempt)]
        except UNREADABLE:
            continue
        met = set[Digest]().union(*(chain.passed for chain in chains))
        if unmet := sorted(wanted[head] for head in wanted.keys() - met):
            rank, label = unmet[0]
            passed = (checkpoints.step_of(wanted[head][1]) for head in met if wanted[head][0] == rank)
            return (
                f"the ledger of rank {rank} was edited after the run: checkpoint {label} has another ledger head, "
                f"so an event of steps {max(passed, default=0) + 1}-{checkpoints.step_of(label)} is false"
            )
    return None
