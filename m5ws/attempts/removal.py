"""Removal of runs. A run stays while others rest on it: forks, replays, verdicts, and checkpoints that are kept."""

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from m5ws.errors import UsageError
from m5ws.records.removal import Removal
from m5ws.repository.references import checkpoints, outputs, removals, runs
from m5ws.repository.references.run_index import RunCreation
from m5ws.repository.repository import Repository
from m5ws.runs import listing


class RunNeeded(UsageError):
    """Others rest on a run, so it is not removed."""


class RemovalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run to remove, with the number of its checkpoints and of its stored sets of output files."""

    run: str
    name: str | None
    checkpoints: int
    outputs: int


def plan(repo: Repository, names: Sequence[str], *, lost: bool = False) -> list[RemovalPlan]:
    """Return the runs to remove. Writes nothing. With `lost`, attempts without an end have ended.

    Raises RunNeeded with all that rests on the runs, UsageError for a run that is removed already or may be alive.
    """
    names = list(dict.fromkeys(names))
    # The run index is not proof enough for a deletion: records and ledgers are read instead.
    known, removed = runs.recorded_facts(repo), removals.removed_runs(repo)
    for name in names:
        removals.refuse_removed(repo, name)
    rows = {row.id: row for row in listing.list_runs(repo, index={}, names=names)}
    alive = [name for name in names if rows[name].standing == "running"]
    if alive and not lost:
        raise UsageError(
            f"run {alive[0]} may be alive: its newest attempt has no end",
            hint="Stop the run first. If its machine was lost, add --lost.",
        )
    staying = {name: fact for name, fact in known.items() if name not in removed and name not in names}
    reasons = [reason for name in names for reason in _dependents(repo, name, known, staying)]
    if reasons:
        raise RunNeeded("nothing was removed: " + "; ".join(reasons), hint="Remove these runs too, or none of them.")
    return [
        RemovalPlan(
            run=name,
            name=rows[name].name,
            checkpoints=len(checkpoints.names(repo, name)),
            outputs=len(outputs.names(repo, name)),
        )
        for name in names
    ]


def remove(repo: Repository, planned: Sequence[RemovalPlan], author: str | None) -> None:
    """Publish the removal of runs."""
    for removal in planned:
        removals.publish(repo, Removal(run=removal.run, author=author, created_s=time.time()))


def _dependents(
    repo: Repository, name: str, known: Mapping[str, RunCreation], staying: Mapping[str, RunCreation]
) -> Iterator[str]:
    """Yield the forks, replays, verdicts and pins that rest on a run, as text for people."""
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
