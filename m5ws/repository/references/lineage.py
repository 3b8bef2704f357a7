"""Lineage of a run: the checkpoint that it starts from, the checkpoint that the parent run starts from, up to the first
run.
"""

from m5ws.records.run import Parent, Run
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository


def chain(repo: Repository, record: Run) -> tuple[tuple[Parent, ...], bool]:
    """Return the checkpoints in a run's lineage, nearest first, and True if the lineage is complete.

    It is incomplete if a parent run is missing or unreadable. Empty for a run that is not a fork.
    """
    parents: list[Parent] = []
    seen = {record.id}
    at = record
    while at.parent is not None:
        parents.append(at.parent)
        # A cycle is impossible: such a record was edited by hand.
        if at.parent.run in seen:
            return tuple(parents), False
        seen.add(at.parent.run)
        try:
            at = runs.load(repo, at.parent.run)
        except runs.UNREADABLE:
            return tuple(parents), False
    return tuple(parents), True


def format_lineage(parents: tuple[Parent, ...], whole: bool) -> str | None:
    """Return a chain in words; None if it is empty."""
    if not parents:
        return None
    text = ", which starts after ".join(f"step {parent.step} of run {parent.run}" for parent in parents)
    return f"after {text}" if whole else f"after {text} (whose record is not to be had here)"
