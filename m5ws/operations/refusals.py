"""Replays that are not begun, because what they would show is worth nothing: each has a verdict that says why."""

import time
from collections.abc import Sequence

from m5ws.comparisons import Change, Verdict
from m5ws.operations import drift, vouching
from m5ws.operations.history import History
from m5ws.records import Run
from m5ws.repository import Repository, runs

_NAMED = 5


def of_environment(repo: Repository, replay: Run, drifted: Sequence[Change]) -> Verdict:
    """Publish a replay whose environment cannot give the same bits, and return the verdict on it."""
    grave = [change for change in drifted if change.rating != "cannot"]
    why = f"the environment differs: {'; '.join(map(drift.title, grave[:_NAMED]))}"
    return _verdict(repo, replay, why, tuple(drifted))


def of_checkpoint(repo: Repository, replay: Run, original: History) -> Verdict | None:
    """Return the verdict on a replay, published, of a segment whose checkpoint is not the run's; None if it is."""
    segment = replay.segment
    if segment is None or segment.digest is None or segment.checkpoint is None:
        return None
    why = vouching.exchanged(repo, original.contents.get(segment.first), segment.digest, segment.checkpoint)
    return _verdict(repo, replay, why) if why is not None else None


def _verdict(repo: Repository, replay: Run, why: str, changes: tuple[Change, ...] = ()) -> Verdict:
    runs.publish(repo, replay)
    return Verdict(
        run=replay.reproduces or "",
        replay=replay.id,
        outcome="not comparable",
        segment=replay.segment,
        not_compared=("everything: nothing was run",),
        changes=changes,
        reason=why,
        created_s=time.time(),
    )
