"""Published checkpoints and output files without an event in the ledger, because of a kill in between.

Such a checkpoint is valid, and a resume starts from it. So the process that ends the attempt, or begins the next
attempt, writes the missing event. Then readers of the ledger see it: histories, verdicts, MLflow.
"""

import time
from collections.abc import Collection, Iterator

from m5ws.errors import UNREADABLE
from m5ws.outputs import saved
from m5ws.records.ledger import CheckpointPublished, OutputsStored
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, outputs
from m5ws.repository.repository import Repository


def events(
    repo: Repository, run: str, attempt: int, known: Collection[str] = ()
) -> Iterator[CheckpointPublished | OutputsStored]:
    """Yield the events missing in the ledger for an attempt's valid checkpoints and its output files.

    Checkpoints and files in `known` are in the ledger. Unreadable ledgers and checkpoints are left to `fsck`, and fail
    no run.
    """
    made = {label for label in checkpoints.names(repo, run) if checkpoints.attempt_of(label) == attempt}
    yield from _missing(repo, run, made.difference(known), [attempt])
    yield from of_outputs(repo, run, attempt)


def of_earlier(repo: Repository, run: str, attempt: int) -> Iterator[CheckpointPublished]:
    """Yield the missing events, as `events` does, of all attempts before one. Their machines may be gone."""
    earlier = [number for number in ledger.attempts(repo, run) if number < attempt]
    made = {label for label in checkpoints.names(repo, run) if checkpoints.attempt_of(label) < attempt}
    yield from _missing(repo, run, made, earlier)


def _missing(repo: Repository, run: str, made: set[str], attempts: list[int]) -> Iterator[CheckpointPublished]:
    if not made:
        return
    try:
        missing = made.difference(*(_recorded(repo, run, attempt) for attempt in attempts))
    except UNREADABLE:
        return
    for label in sorted(missing.intersection(checkpoints.valid(repo, run))):
        try:
            digest, record = checkpoints.read(repo, run, label)
        except UNREADABLE:
            continue
        yield CheckpointPublished(
            time_s=time.time(), step=record.step, name=label, checkpoint=digest, content=record.content
        )


def of_outputs(repo: Repository, run: str, attempt: int, node: int = 0) -> Iterator[OutputsStored]:
    """Yield the missing event about the output files of a node, as `events` does."""
    name = outputs.name(attempt, node=node)
    try:
        if name not in outputs.names(repo, run) or name in _recorded(repo, run, attempt):
            return
        event = saved.event(repo, name, *outputs.find(repo, run, name))
    except UNREADABLE:
        return
    yield event


def _recorded(repo: Repository, run: str, attempt: int) -> set[str]:
    return {event.name for event in ledger.published(repo, run, attempt)}
