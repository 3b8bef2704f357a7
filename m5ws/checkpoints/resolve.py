"""What people call a checkpoint: the one place that says it.

    RUN              the newest checkpoint of a run that counts
    RUN@STEP         the one after that step; of several attempts', the newest that counts
    RUN@STEP-ATTEMPT its whole name, with or without its zeros
    DIGEST           the digest of its record, in full

RUN is a unique prefix of a run's id.
"""

import re

import msgspec

from m5ws.errors import NotFound, UsageError
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.repository import checkpoints, ids
from m5ws.repository.objects import is_digest
from m5ws.repository.repository import Repository

_SHOWN = 8


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A published checkpoint: its run, its name there, and the digest of its record."""

    run: str
    name: str
    digest: Digest

    def __str__(self) -> str:
        return f"{self.run}@{self.name}"


def resolve(repo: Repository, text: str, *, counting: bool = True, state: bool = False) -> Named:
    """Return the checkpoint that `text` stands for; one that a newer attempt does not count only if asked.

    With `state`, RUN alone is the newest that a training can go on from, and not files that a script wrote. Raises
    NotFound, AmbiguousId, UsageError, CorruptObject.
    """
    wanted = text.strip().lower()
    if is_digest(wanted):
        return _by_digest(repo, wanted, counting)
    prefix, at, label = wanted.partition("@")
    if at and not re.fullmatch(r"\d+(-\d+)?", label):
        raise UsageError(
            f"{text!r} does not name a checkpoint",
            hint="Write RUN, RUN@STEP or RUN@STEP-ATTEMPT, as in 7c1d@20000 or 7c1d@20000-2.",
        )
    _, run = ids.resolve(repo, prefix, ("run",))
    valid = checkpoints.valid(repo, run)
    known = valid if counting or "-" not in label else checkpoints.names(repo, run)
    found = [name for name in known if not label or _is(name, label)]
    if state and not label:
        found = next(([name] for name in reversed(found) if holds_state(repo, run, name)), found)
    if not found:
        raise _absent(repo, run, label, valid)
    return Named(run=run, name=found[-1], digest=checkpoints.digest(repo, run, found[-1]))


def holds_state(repo: Repository, run: str, name: str) -> bool:
    """Return whether a training can go on from a checkpoint: it holds more than files that a script wrote."""
    _, record = checkpoints.read(repo, run, name)
    content = repo.objects.get_record(record.content, Content)
    return content.format != "files/1"


def known(repo: Repository, run: str) -> list[str]:
    """Return how each checkpoint of a run that counts is called, in order of steps, as briefly as can be."""
    return [str(step) for step in dict.fromkeys(map(checkpoints.step_of, checkpoints.valid(repo, run)))]


def _is(name: str, wanted: str) -> bool:
    step, _, attempt = wanted.partition("-")
    return checkpoints.step_of(name) == int(step) and (not attempt or checkpoints.attempt_of(name) == int(attempt))


def _by_digest(repo: Repository, digest: Digest, counting: bool) -> Named:
    record = repo.objects.get_record(digest, Checkpoint)
    name = checkpoints.name(record.step, record.attempt)
    if checkpoints.digest(repo, record.run, name) != digest:
        raise NotFound(f"the record {digest} is not that of checkpoint {name} of run {record.run}")
    if counting and name not in checkpoints.valid(repo, record.run):
        raise _fenced(record.run, name)
    return Named(run=record.run, name=name, digest=digest)


def _fenced(run: str, name: str) -> UsageError:
    return UsageError(
        f"checkpoint {name} of run {run} does not count: a newer attempt had begun when it was published",
        hint=f"`m5ws checkpoint ls {run}` lists those that do.",
    )


def _absent(repo: Repository, run: str, label: str, valid: list[str]) -> NotFound | UsageError:
    fenced = [name for name in checkpoints.names(repo, run) if label and _is(name, label)]
    if fenced:
        return _fenced(run, fenced[-1])
    if not valid:
        return NotFound(f"run {run} has no checkpoint", hint=f"`m5ws show {run}` says how far it came.")
    steps = known(repo, run)
    listed = ", ".join(steps[-_SHOWN:])
    return NotFound(
        f"run {run} has no checkpoint {label}; it has {'… ' if len(steps) > _SHOWN else ''}{listed}",
        hint=f"`m5ws checkpoint ls {run}` lists them all.",
    )
