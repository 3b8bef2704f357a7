"""Recorded evidence on the cause of a difference: the resume before it, and threads that changed during the run."""

from collections.abc import Sequence

import msgspec

from m5ws.environment.drift import rate
from m5ws.records.reasons import Resume
from m5ws.records.verdict import Change, Divergence
from m5ws.reproduce.compare import Comparison

_AFFECTED_STEPS = 2
"""Steps after a resume that show lost state. Values of a step precede its update, which the next step shows."""


def find_resume(comparison: Comparison, first: Divergence, begin: int) -> Resume | None:
    """Return the last resume of the original before a first difference; None without one after step `begin`."""
    original = comparison.original
    # A file, a metric and the final weights are of the last attempt. The step of their difference is unknown.
    at_end = first.is_result or first.kind == "final tensor"
    step = original.last_step if at_end else first.step
    at, attempt = original.resumed_before(step), original.attempt_of(step)
    if not original.by_steps and any(notice.kind == "outputs-restored" for notice in original.notices):
        return Resume(step=None, is_cause=False)
    if not at or at < begin:
        return None
    inexact = [
        notice.message
        for notice in original.notices
        if notice.kind == "inexact-resume" and original.attempt_of(notice.step or 0) == attempt
    ]
    limits = [notice.message for notice in original.notices if notice.kind == "resume-limit"]
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
