"""Checkpoints of a run: one reference each, with the digest of a `Checkpoint` record.

Fencing: attempt n+1 starts with a ledger event that lists the checkpoints it inherits. A late rank of attempt n may
still create its key. Readers ignore checkpoints of an earlier attempt that the next attempt did not list. So zombies
are excluded without a clock, lease or lock.
"""

import re
from collections.abc import Iterator, Mapping

from m5ws.errors import CorruptObject, Fenced, NotFound, UnknownSchema, UsageError
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.ledger import NODE, CheckpointPublished
from m5ws.repository import bindings, gc_plans, publishing
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

Recorded = Mapping[str, CheckpointPublished]
"""The ledger's events about a run's checkpoints, by checkpoint name."""

# Other ranks wait minutes for the publishing rank, and a failed save is retried.
_PATIENCE = gc_plans.RetryPolicy(limit_s=60.0)

PINS = "pins/"
"""Prefix of pins, `pins/<run>/<checkpoint>`: checkpoints that are kept for ever.

A pin has the line of the reference.
"""


def name(step: int, attempt: int) -> str:
    """Return the name of the checkpoint of `attempt` after `step`."""
    return f"{step:010d}-{attempt:04d}"


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a checkpoint's name."""
    return re.fullmatch(r"[0-9]{10}-[0-9]{4,}", text) is not None


def step_of(checkpoint_name: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint_name.split("-", maxsplit=1)[0])


def attempt_of(checkpoint_name: str) -> int:
    """Return the attempt in a checkpoint's name."""
    return int(checkpoint_name.partition("-")[2])


def publish(repo: Repository, checkpoint: Checkpoint, began: frozenset[str] | None = None) -> Digest:
    """Publish a checkpoint whose content is durable on all ranks, and return its digest.

    `began` is the intersection of `Objects.begin` on all ranks. Raises Fenced if a newer attempt has started, or if
    another checkpoint has this name, Removed if the run is removed. Raises ObjectDeleted if gc has deleted some of the
    content: save all of it again.
    """
    newest = max(ledger.attempts(repo, checkpoint.run), default=0)
    if newest > checkpoint.attempt:
        raise Fenced(f"attempt {checkpoint.attempt} of run {checkpoint.run} was superseded by attempt {newest}")
    record = repo.objects.put_record(checkpoint)
    where = key(checkpoint.run, name(checkpoint.step, checkpoint.attempt))
    patience = repo.patience or _PATIENCE
    publishing.publish_record(repo, where, record, Checkpoint, run=checkpoint.run, patience=patience, began=began)
    return record


def keep(repo: Repository, run: str, label: str) -> None:
    """Keep a checkpoint for ever, against all retention rules; there is no undo. Raises NotFound, Removed."""
    repo.objects.begin()
    record = digest(repo, run, label)
    if label not in valid(repo, run):
        raise UsageError(f"checkpoint {label} of run {run} is not valid: a newer attempt had started")
    publishing.publish_record(repo, pin_key(run, label), record, Checkpoint, run=run)


def kept(repo: Repository, run: str) -> list[str]:
    """Return the names of a run's pinned checkpoints."""
    return [label for label in repo.store.names(f"{PINS}{run}/") if is_name(label)]


def pin_key(run: str, label: str) -> str:
    """Return the key of a checkpoint's pin."""
    return f"{PINS}{run}/{label}"


def find(repo: Repository, run: str, label: str, recorded: Recorded | None = None) -> tuple[Digest, Checkpoint]:
    """Return a checkpoint's digest and record, checked against its key and its event in the ledger.

    `recorded` has all events of the ledger, if the caller has read them. Otherwise the event is looked up, and a
    damaged ledger counts as a ledger without events. Raises NotFound, CorruptObject, Misplaced.
    """
    digest, record = read(repo, run, label)
    event = _event(repo, run, label) if recorded is None else recorded.get(label)
    if event is not None:
        bindings.check_event(f"checkpoint {label}", digest, record, event)
    return digest, record


def read(repo: Repository, run: str, label: str) -> tuple[Digest, Checkpoint]:
    """Return as `find`, checked against the key only, for callers that read the ledger themselves or not at all."""
    where = key(run, label)
    try:
        digest = bindings.line(repo.store, where)
    except NotFound as error:
        raise NotFound(f"run {run} has no checkpoint {label}") from error
    return digest, bindings.load_checkpoint(repo.objects, where, digest)


def digest(repo: Repository, run: str, label: str, recorded: Recorded | None = None) -> Digest:
    """Return the digest of a checkpoint's record; otherwise as `find`."""
    return find(repo, run, label, recorded)[0]


def _event(repo: Repository, run: str, label: str) -> CheckpointPublished | None:
    """Return the event about a checkpoint, or None. Its attempt has it, or after a kill a later attempt."""
    try:
        return next((event for event in _published(repo, run, attempt_of(label)) if event.name == label), None)
    except (CorruptObject, UnknownSchema, NotFound):
        return None


def _published(repo: Repository, run: str, attempt: int) -> Iterator[CheckpointPublished]:
    for number in ledger.attempts(repo, run):
        for batch in ledger.backwards(repo, run, number) if number >= attempt else ():
            events = ledger.decode(batch, ("0", NODE))
            yield from (event for _, event in events if isinstance(event, CheckpointPublished))


def names(repo: Repository, run: str) -> list[str]:
    """Return the names of all published checkpoints in order of steps, fenced checkpoints included."""
    return [label for label in repo.store.names(f"runs/{run}/checkpoints/") if is_name(label)]


def valid(repo: Repository, run: str) -> list[str]:
    """Return the names of the valid checkpoints, in order of steps."""
    published = set(names(repo, run))
    accepted: set[str] = set()
    for attempt in ledger.attempts(repo, run):
        earlier = inherited(repo, run, attempt) if attempt > 1 else set()
        accepted = earlier | {label for label in published if attempt_of(label) == attempt}
    return sorted(accepted & published)


def inherited(repo: Repository, run: str, attempt: int) -> set[str]:
    """Return the earlier checkpoints in an attempt's first event."""
    started = ledger.started(repo, run, attempt)
    return set(started.inherits) if started is not None else set()


def key(run: str, label: str) -> str:
    """Return the key of a checkpoint's reference."""
    return f"runs/{run}/checkpoints/{label}"
