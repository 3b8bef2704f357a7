"""Names of checkpoints on the command line, all resolved here.

    RUN              the newest valid checkpoint of a run
    RUN@STEP         the checkpoint after that step; the newest valid one, if several attempts made one
    RUN@STEP-ATTEMPT its whole name, with or without zeros
    DIGEST           the digest of its record, in full

RUN is a unique prefix of a run's id, or its name.
"""

import re

import msgspec

from m5ws.errors import NotFound, UsageError
from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint
from m5ws.repository.objects import is_digest
from m5ws.repository.references import checkpoints, ids, outputs
from m5ws.repository.repository import Repository

_SHOWN = 8


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """A published checkpoint: its run, its name there, and the digest of its record."""

    run: str
    name: str
    digest: Digest

    def __str__(self) -> str:
        return f"{self.run}@{self.name}"


def resolve(repo: Repository, text: str, *, counting: bool = True) -> CheckpointRef:
    """Return the checkpoint with the name `text`. With `counting`, a checkpoint that a newer attempt fenced is refused.

    Raises NotFound, AmbiguousId, UsageError, CorruptObject.
    """
    wanted = text.strip().lower()
    if is_digest(wanted):
        return _by_digest(repo, wanted, counting)
    prefix, at, label = wanted.partition("@")
    if at and not re.fullmatch(r"\d+(-\d+)?", label):
        raise UsageError(
            f"{text!r} is not the name of a checkpoint",
            hint="Write RUN, RUN@STEP or RUN@STEP-ATTEMPT, for example 7c1d@20000 or 7c1d@20000-2.",
        )
    _, run = ids.resolve(repo, prefix, ("run",))
    valid = checkpoints.valid(repo, run)
    known = valid if counting or "-" not in label else checkpoints.names(repo, run)
    names = [name for name in known if not label or _is(name, label)]
    if not names:
        raise _absent(repo, run, label, valid)
    return CheckpointRef(run=run, name=names[-1], digest=checkpoints.digest(repo, run, names[-1]))


def _is(name: str, wanted: str) -> bool:
    step, _, attempt = wanted.partition("-")
    return checkpoints.step_of(name) == int(step) and (not attempt or checkpoints.attempt_of(name) == int(attempt))


def _by_digest(repo: Repository, digest: Digest, counting: bool) -> CheckpointRef:
    record = repo.objects.get_record(digest, Checkpoint)
    name = checkpoints.name(record.step, record.attempt)
    if checkpoints.digest(repo, record.run, name) != digest:
        raise NotFound(
            f"checkpoint {name} of run {record.run} does not have the record {digest}",
            hint=f"`m5ws checkpoint ls {record.run}` lists its checkpoints.",
        )
    if counting and name not in checkpoints.valid(repo, record.run):
        raise _fenced(record.run, name)
    return CheckpointRef(run=record.run, name=name, digest=digest)


def _fenced(run: str, name: str) -> UsageError:
    return UsageError(
        f"checkpoint {name} of run {run} is invalid: it was published after a newer attempt had begun",
        hint=f"`m5ws checkpoint ls {run}` lists the valid checkpoints.",
    )


def _absent(repo: Repository, run: str, label: str, valid: list[str]) -> NotFound | UsageError:
    fenced = [name for name in checkpoints.names(repo, run) if label and _is(name, label)]
    if fenced:
        return _fenced(run, fenced[-1])
    if not valid:
        written = f"`m5ws outputs {run} DIR` writes the output files of its script, such as saved models."
        shown = f"`m5ws show {run}` shows its last step."
        return NotFound(f"run {run} has no checkpoint", hint=written if outputs.names(repo, run) else shown)
    steps = [str(step) for step in dict.fromkeys(map(checkpoints.step_of, valid))]
    listed = ", ".join(steps[-_SHOWN:])
    return NotFound(
        f"run {run} has no checkpoint {label}; it has {'… ' if len(steps) > _SHOWN else ''}{listed}",
        hint=f"`m5ws checkpoint ls {run}` lists all.",
    )
