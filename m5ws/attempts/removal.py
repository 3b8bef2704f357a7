"""Removal of runs. A run stays while others rest on it: forks, replays, verdicts, and checkpoints that are kept.

A removal is a fence: `remove` publishes it, and then reads the runs again, so that nothing that was published before
the removal disappears without a word (docs/design/0037-a-removal-is-a-fence.md).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import TopologicalSorter

import msgspec

from m5ws.agent import recovery
from m5ws.agent.recovery import NewestAttempt
from m5ws.errors import ObjectExists, UsageError
from m5ws.records.removal import Removal
from m5ws.repository import removals
from m5ws.repository.references import checkpoints, outputs, runs
from m5ws.repository.references.run_index import RunCreation
from m5ws.repository.repository import Repository


class RunNeeded(UsageError):
    """Others rest on a run, so it is not removed."""


class RemovalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run to remove, with the number of its checkpoints and of its stored sets of output files.

    `newest` is its newest attempt: the host, and the last sign of life. `rests_on` has the run that it reproduces, and
    the run that it starts from.
    """

    run: str
    name: str | None
    user: str | None
    checkpoints: int
    outputs: int
    newest: NewestAttempt | None
    rests_on: tuple[str, ...]


def plan(repo: Repository, names: Sequence[str], *, lost: bool = False) -> list[RemovalPlan]:
    """Return the runs to remove. Writes nothing. With `lost`, attempts without an end have ended.

    Raises RunNeeded with all that rests on the runs, Removed for a run that is removed already, UsageError for a run
    that may be alive.
    """
    names = list(dict.fromkeys(names))
    removals.refuse(repo, *names)
    # The run index is not proof enough for a deletion: records and ledgers are read instead.
    known = runs.recorded_facts(repo)
    planned = [_plan(repo, name, known.get(name)) for name in names]
    alive = next((row.newest for row in planned if row.newest is not None and not row.newest.ended), None)
    if alive is not None and not lost:
        hint = "Stop the run first. If its machine was lost, add --lost: an attempt that lives then stops by itself."
        raise UsageError(alive.describe_life(), hint=hint)
    if reasons := _dependents(repo, names, known):
        raise RunNeeded("nothing was removed: " + "; ".join(reasons), hint="Remove these runs too, or none of them.")
    return planned


def _plan(repo: Repository, run: str, fact: RunCreation | None) -> RemovalPlan:
    try:
        newest = recovery.find_newest(repo, run)
    except runs.UNREADABLE:
        newest = None  # A damaged run can be removed.
    return RemovalPlan(
        run=run,
        name=fact.name if fact is not None else None,
        user=next((record.user for record in runs.readable(repo, [run])), None),
        checkpoints=len(checkpoints.names(repo, run)),
        outputs=len(outputs.names(repo, run)),
        newest=newest,
        rests_on=tuple(filter(None, (fact.reproduces, fact.parent))) if fact is not None else (),
    )


def remove(repo: Repository, planned: Sequence[RemovalPlan], author: str | None) -> tuple[list[RemovalPlan], list[str]]:
    """Publish the removal of runs, then read them and all that rests on them again.

    Return the runs as they were at their removal, and all that began since the plan, or may live, as text for people.
    """
    names = [row.run for row in planned]
    resting = {name: [row.run for row in planned if name in row.rests_on] for name in names}
    # A run before the runs that it rests on: a kill in between leaves no run that rests on a removed run.
    for name in TopologicalSorter(resting).static_order():
        with suppress(ObjectExists):
            removals.publish(repo, Removal(run=name, author=author, created_s=time.time()))
    # From here on, every publication meets the removal. All earlier publications are read below.
    known = runs.recorded_facts(repo)
    now = [_plan(repo, name, known.get(name)) for name in names]
    late = [f"{reason}, since the removal began" for reason in _dependents(repo, names, known)]
    return now, [*late, *_lives(planned, now)]


def _lives(planned: Sequence[RemovalPlan], now: Sequence[RemovalPlan]) -> Iterator[str]:
    """Yield the attempts of removed runs that may be alive, or that began since the plan, as text for people."""
    for before, after in zip(planned, now, strict=True):
        if after.newest is None:
            continue
        if not after.newest.ended:
            yield f"{after.newest.describe_life()}; an attempt that lives stops by itself, and keeps its work there"
        elif before.newest is None or before.newest.attempt != after.newest.attempt:
            yield f"attempt {after.newest.attempt} of run {after.run} on {after.newest.host} began and ended meanwhile"


def _dependents(repo: Repository, names: Sequence[str], known: Mapping[str, RunCreation]) -> list[str]:
    """Return the forks, replays, verdicts and pins that rest on runs, without removed runs, as text for people."""
    removed = removals.removed_runs(repo)
    staying = {name: fact for name, fact in known.items() if name not in removed and name not in names}
    return [reason for name in names for reason in _rests_on(repo, name, known, staying)]


def _rests_on(
    repo: Repository, name: str, known: Mapping[str, RunCreation], staying: Mapping[str, RunCreation]
) -> Iterator[str]:
    for other, fact in staying.items():
        if fact.reproduces == name:
            yield f"run {other} reproduces {name}"
        elif fact.parent == name:
            yield f"run {other} starts from a checkpoint of {name}"
    for label in checkpoints.kept(repo, name):
        yield f"checkpoint {name}@{label} is kept (`m5ws checkpoint keep`)"
    for verdict in runs.verdicts(repo, name):
        if name in verdict.replays and verdict.run in staying:
            yield f"the verdict on run {verdict.run} rests on its replay {name}"
    original = known[name].reproduces if name in known else None
    joint = runs.joint(repo, original) if original is not None and original in staying else None
    if joint is not None and name in joint.replays:
        yield f"the joint verdict on run {original} rests on its replay {name}"
