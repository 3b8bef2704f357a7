"""Runs and their verdicts, each written once under the run's id."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from m5ws import errors, secret_gate
from m5ws.errors import NotFound, ObjectExists, UsageError
from m5ws.records import codec
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.run import Run
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository import bindings, concurrency, presence, publishing, removals
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.references import run_index
from m5ws.repository.references.run_index import RunCreation, RunFacts
from m5ws.repository.repository import Repository

LINKS = "linked/"
"""Prefix of links, `linked/<run>/<other>`: empty keys, one for each replay and each fork of a run."""


def new_id() -> str:
    """Return a new run id: 12 hex digits."""
    return os.urandom(6).hex()


def publish(repo: Repository, run: Run) -> None:
    """Publish a run, after its snapshot. Raises ObjectExists if the id exists, SecretText for a text like a secret.

    A fork needs the checkpoint that it starts from. Raises NotFound, ObjectDeleted if that is missing, and Removed if a
    run that the run rests on is removed.
    """
    secret_gate.refuse(run, f"run {run.id}")
    # Before the record, so each replay and each fork has its link. A link without a record is ignored.
    for key in link_keys(run):
        with suppress(ObjectExists):
            repo.store.create(key, b"")

    def create() -> None:
        repo.store.create(f"runs/{run.id}/run", codec.encode(run))

    if run.parent is None:
        create()
    else:
        _publish_fork(repo, run, create)
    run_index.write_created(repo, run)
    removals.refuse(repo, *removals.origins(run))


def origins(run: Run) -> tuple[str, ...]:
    """Return the runs that a run reproduces or starts from."""
    return tuple(filter(None, (run.reproduces, run.parent.run if run.parent is not None else None)))


def link_keys(run: Run) -> list[str]:
    """Return the keys of the links to a run from its origins."""
    return [f"{LINKS}{origin}/{run.id}" for origin in origins(run)]


def linked(repo: Repository, run_id: str) -> dict[str, RunCreation]:
    """Return the facts in the records of the replays and forks of a run. A record decides, not its link."""
    records = readable(repo, repo.store.names(f"{LINKS}{run_id}/"))
    return {run.id: run_index.created(run) for run in records if run_id in origins(run)}


def _publish_fork(repo: Repository, run: Run, create: Callable[[], None]) -> None:
    assert run.parent is not None
    began = repo.objects.begin()
    reach = ReachableObjects(repo.objects)
    reach.record(run.parent.digest, Checkpoint)
    if missing := presence.missing(repo.objects, {digest.hex(): 0 for digest in reach.digests}):
        raise NotFound(
            f"{len(missing)} objects of checkpoint {run.parent.name} are missing in the store",
            hint="Run `m5ws fsck` to list damage, and `m5ws show` to list checkpoints.",
        )
    publishing.publish(repo, lambda: reach.digests, create, run=None, began=began)


def load(repo: Repository, run_id: str) -> Run:
    """Return a run. Raises NotFound, CorruptObject, UnknownSchema."""
    try:
        return bindings.record(repo.store, f"runs/{run_id}/run", Run)
    except NotFound as error:
        raise NotFound(f"no run {run_id}") from error


def ids(repo: Repository) -> list[str]:
    """Return the ids of all runs, sorted."""
    return list(repo.store.names("runs/"))


def publish_verdict(repo: Repository, verdict: Verdict) -> None:
    """Publish the verdict of a replay, once. Raises ObjectExists if the replay has a verdict.

    Raises Removed if a run that the verdict rests on is removed.
    """
    repo.store.create(f"runs/{verdict.replay}/verdict", codec.encode(verdict))
    run_index.write_verdict(repo, verdict)
    removals.refuse(repo, verdict.run, *verdict.replays)


def verdict(repo: Repository, replay: Run) -> Verdict | None:
    """Return the verdict of a replay, or None if it has none. Raises CorruptObject, Misplaced, UnknownSchema."""
    loaded = bindings.find(repo.store, f"runs/{replay.id}/verdict", Verdict)
    if loaded is not None:
        bindings.check_verdict(loaded, replay)
    return loaded


def publish_joint(repo: Repository, joint: JointVerdict) -> None:
    """Publish a joint verdict of replays of segments. Existing joint verdicts stay unchanged. Raises Removed."""
    bindings.create_at(repo.store, joints_of(joint.run), joint.created_s, joint)
    removals.refuse(repo, joint.run, *joint.replays)


def joints_of(run_id: str) -> str:
    """Return the key prefix of the joint verdicts about a run."""
    return f"runs/{run_id}/joint/"


def joint(repo: Repository, run_id: str) -> JointVerdict | None:
    """Return the newest joint verdict about a run, or None. Raises CorruptObject, UnknownSchema."""
    newest = max(repo.store.names(joints_of(run_id)), default=None)
    if newest is None:
        return None
    return bindings.record(repo.store, f"{joints_of(run_id)}{newest}", JointVerdict)


def verdicts(repo: Repository, run_id: str, known: Mapping[str, RunCreation] | None = None) -> list[Verdict]:
    """Return the verdicts that name a run, as the original or as a replay, oldest first.

    `known`: the result of `linked` for the run, if the caller has it.
    """
    replayed = {run_id, *replays_among(linked(repo, run_id) if known is None else known, run_id)}
    if (original := load(repo, run_id).reproduces) is not None:
        replayed |= set(replays(repo, original))
    loaded = concurrency.for_each(lambda one: verdict(repo, one), readable(repo, sorted(replayed)))
    relevant = [one for one in loaded if one is not None and run_id in (one.run, *one.replays)]
    return sorted(relevant, key=lambda one: one.created_s)


def replays(repo: Repository, run_id: str) -> list[str]:
    """Return the ids of the runs that reproduce `run_id`, oldest first."""
    return replays_among(linked(repo, run_id), run_id)


def replays_among(known: Mapping[str, RunCreation], run_id: str) -> list[str]:
    """Return the ids of the runs that reproduce `run_id`, oldest first, of runs with these facts."""
    replays = [run for run, fact in known.items() if fact.reproduces == run_id]
    return sorted(replays, key=lambda run: known[run].created_s)


def facts(repo: Repository, index: Mapping[str, RunFacts] | None = None) -> dict[str, RunCreation]:
    """Return the facts of all runs, from the index or, where it has none, from the run's record.

    For lists alone: verdicts and deletions rest on `recorded_facts`. A run that cannot be read is left out: it does not
    hide the other runs, and fsck names it. `index`: the run index, if the caller has read it.
    """
    indexed = run_index.load(repo) if index is None else index

    def fact(run_id: str) -> RunCreation | None:
        if (entry := indexed.get(run_id)) is not None and entry.created is not None:
            return entry.created
        run = _load_readable(repo, run_id)
        return run_index.created(run) if run is not None else None

    names = ids(repo)
    loaded = zip(names, concurrency.for_each(fact, names), strict=True)
    return {run_id: one for run_id, one in loaded if one is not None}


def recorded_facts(repo: Repository) -> dict[str, RunCreation]:
    """Return the facts of all runs from their records, or from the index where a record cannot be read."""
    recorded = facts(repo, index={})
    return recorded if len(recorded) == len(ids(repo)) else facts(repo) | recorded


def sweeps(repo: Repository) -> list[str]:
    """Return the ids of all sweeps that have a run, sorted."""
    return sorted({fact.sweep for fact in facts(repo).values() if fact.sweep is not None})


UNREADABLE = (*errors.UNREADABLE, UsageError)
"""Errors of reading another run's record. An invalid id raises UsageError."""


def readable(repo: Repository, names: Iterable[str]) -> list[Run]:
    """Return the records of runs, without records that cannot be read."""
    loaded = concurrency.for_each(partial(_load_readable, repo), names)
    return [run for run in loaded if run is not None]


def _load_readable(repo: Repository, run_id: str) -> Run | None:
    try:
        return load(repo, run_id)
    except UNREADABLE:
        return None
