"""Where a run comes from: the checkpoint it starts from, the one that run starts from, and so on to the first run."""

from m5ws.records.run import Parent, Run
from m5ws.repository import runs
from m5ws.repository.repository import Repository


def chain(repo: Repository, record: Run) -> tuple[tuple[Parent, ...], bool]:
    """Return the checkpoints that a run stands on, the nearest first, and whether that is all of them.

    It is not where a run was copied here without its parent, or its parent cannot be read. Empty for a run that is no
    fork.
    """
    found: list[Parent] = []
    seen = {record.id}
    at = record
    while at.parent is not None:
        found.append(at.parent)
        # Nobody descends from himself: a record that says so was made by hand.
        if at.parent.run in seen:
            return tuple(found), False
        seen.add(at.parent.run)
        try:
            at = runs.load(repo, at.parent.run)
        except runs.UNREADABLE:
            return tuple(found), False
    return tuple(found), True


def text(found: tuple[Parent, ...], whole: bool) -> str | None:
    """Return a chain in words; None if it is empty."""
    if not found:
        return None
    said = ", which starts after ".join(f"step {parent.step} of run {parent.run}" for parent in found)
    return f"after {said}" if whole else f"after {said} (whose record is not to be had here)"
