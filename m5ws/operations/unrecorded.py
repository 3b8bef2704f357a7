"""Checkpoints that were published and that no event names: a kill came between the two.

Such a checkpoint counts, and a resume begins from it. So whoever ends the attempt, or begins the next one, writes the
event that is missing, and all that reads the ledger alone learns of it: histories, verdicts, MLflow.
"""

import time
from collections.abc import Collection, Iterator

from m5ws.events import CheckpointPublished
from m5ws.repository import Repository, checkpoints, ledger


def events(repo: Repository, run: str, attempt: int, known: Collection[str] = ()) -> Iterator[CheckpointPublished]:
    """Yield what its ledger lacks of an attempt's checkpoints that count; those in `known` are in the ledger.

    Raises NotFound, CorruptObject.
    """
    published = {label for label in checkpoints.names(repo, run) if checkpoints.attempt_of(label) == attempt}
    missing = published.difference(known)
    if missing:
        missing -= _recorded(repo, run, attempt)
    if not missing:
        return
    for label in sorted(missing.intersection(checkpoints.valid(repo, run))):
        digest = checkpoints.digest(repo, run, label)
        yield CheckpointPublished(
            time_s=time.time(),
            step=checkpoints.step_of(label),
            name=label,
            checkpoint=digest,
            content=checkpoints.load(repo, run, label).content,
        )


def _recorded(repo: Repository, run: str, attempt: int) -> set[str]:
    return {
        event.name
        for rank in ("0", ledger.LAUNCHER)
        for event in ledger.events(repo, run, attempt, rank)
        if isinstance(event, CheckpointPublished)
    }
