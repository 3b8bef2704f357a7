"""The reason of a divergence in words: the resume before the first difference, or the recorded changes.

The reason contains recorded evidence alone. Recorded changes are listed by their rating and in no order of likelihood.
`m5ws bisect` proves a cause.
"""

from collections.abc import Sequence

import msgspec

from m5ws.environment.drift import rate, title
from m5ws.outputs import collect
from m5ws.records.ledger import INEXACT_RESUME, RESUME_LIMIT
from m5ws.records.verdict import FINAL, Change, Divergence, is_result, is_state
from m5ws.reproduce.compare import Comparison

_LISTED = 8
_AFFECTED_STEPS = 2
"""Steps after a resume that show lost state. Values of a step precede its update, which the next step shows."""


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """The last resume before a first difference, after `step`; None: from output files alone.

    `is_cause`: the difference is in the first steps after the resume, or a notice states that the resume was inexact.
    `notices` are the recorded messages about the resume.
    """

    step: int | None
    is_cause: bool
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"after step {self.step}" if self.step is not None else "from the output files of an earlier attempt"


def able_changes(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that can alter bits."""
    return [change for change in changes if change.rating != "cannot"]


def find_resume(comparison: Comparison, first: Divergence, begin: int) -> Resume | None:
    """Return the last resume of the original before a first difference; None without one after step `begin`."""
    original = comparison.original
    # A file, a metric and the final weights are of the last attempt. The step of their difference is unknown.
    at_end = is_result(first.quantity) or first.quantity.startswith(FINAL)
    step = original.last_step if at_end else first.step
    at, attempt = original.resumed_before(step), original.attempt_of(step)
    if not original.by_steps and any(notice.kind == collect.RESTORED for notice in original.notices):
        return Resume(step=None, is_cause=False)
    if not at or at < begin:
        return None
    inexact = [
        notice.message
        for notice in original.notices
        if notice.kind == INEXACT_RESUME and original.attempt_of(notice.step or 0) == attempt
    ]
    limits = [notice.message for notice in original.notices if notice.kind == RESUME_LIMIT]
    earliest = first.equal_after + 1 if first.equal_after is not None else first.step
    is_cause = bool(inexact) or (not at_end and earliest <= at + _AFFECTED_STEPS)
    return Resume(step=at, is_cause=is_cause, notices=tuple(dict.fromkeys((*inexact, *limits))))


def with_threads(changes: Sequence[Change], comparison: Comparison, first: Divergence) -> tuple[Change, ...]:
    """Return changes with the change of the rank's number of threads that a side made during the run."""
    old, new = (side.threads_at(first.rank, first.step) for side in (comparison.original, comparison.replay))
    if old is None or new is None or old == new or any(change.name == "threads" for change in changes):
        return tuple(changes)
    threads = rate("environment", "threads", old, new)
    name = f"threads of rank {first.rank} in step {first.step}"
    return (*changes, msgspec.structs.replace(threads, name=name))


def explain(
    first: Divergence, changes: Sequence[Change], resume: Resume | None = None, rewritten: str | None = None
) -> str:
    """Return the reason of a first difference.

    `rewritten` describes an edit of the original's ledger. It is named if no resume and no change explains the
    difference.
    """
    able = able_changes(changes)
    where = f"first difference is {place_of(first)}"
    if resume is None:
        return f"{_cause(able, rewritten)}. The {where}"
    notices = "".join(f". {message[:1].upper()}{message[1:]}" for message in resume.notices)
    if not resume.is_cause:
        return f"{_cause(able, rewritten)}. The {where}. The original was resumed {resume}{notices}"
    named = f". Recorded changes that can alter bits: {_list(able)}" if able else ""
    return f"the resume of the original {resume}: the {where}{notices}{named}"


def _cause(able: Sequence[Change], rewritten: str | None) -> str:
    if len(able) == 1:
        return f"{_one(able[0])} is the only recorded change that can alter bits"
    if able:
        return f"{len(able)} recorded changes can alter bits: {_list(able)}. `m5ws bisect` finds the cause"
    return rewritten or "no recorded change explains the difference"


def place_of(first: Divergence) -> str:
    """Return the place of a first difference in words."""
    if is_state(first.quantity):
        gap = (
            f" (equal after step {first.equal_after}, not recorded in between)" if first.equal_after is not None else ""
        )
        return f"{first.quantity} {f'after step {first.step}' if first.step else 'before the first step'}{gap}"
    if is_result(first.quantity):
        return first.quantity
    return f"{first.quantity} at step {first.step} on rank {first.rank}"


def _list(changes: Sequence[Change]) -> str:
    shown = [f"({number}) {_one(change)}" for number, change in enumerate(changes[:_LISTED], 1)]
    more = f"; and {len(changes) - _LISTED} more" if len(changes) > _LISTED else ""
    return "; ".join(shown) + more


def _one(change: Change) -> str:
    """Return a change in words. A changed file is named without its digests."""
    if _is_file(change):
        done = "added" if change.old is None else "removed" if change.new is None else "changed"
        return f"{change.part} {change.name} was {done}"
    if change.part == "data" and change.detail:
        return f"data {change.name} ({change.detail.splitlines()[0]})"
    return title(change)


def _is_file(change: Change) -> bool:
    """Return True if a change is of a file, whose old and new values are digests."""
    return change.part in ("code", "tokenizer") and change.name not in {"probe ids", "commit"}


def is_named_whole(change: Change) -> bool:
    """Return True if a reason contains both values of a change."""
    return change.rating != "cannot" and change.part != "data" and not _is_file(change)
