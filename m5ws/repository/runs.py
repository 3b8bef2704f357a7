"""Runs and their verdicts, each written once under the run's id."""

import os
from collections.abc import Iterable, Sequence

from m5ws import errors
from m5ws.errors import NotFound, UsageError
from m5ws.records import codec
from m5ws.records.run import Run
from m5ws.records.verdict import JointVerdict, Verdict
from m5ws.repository import bindings, concurrency, presence, publishing
from m5ws.repository.reachability.reach import Reach
from m5ws.repository.repository import Repository


def new_id() -> str:
    """Return a new run id: 12 hex digits."""
    return os.urandom(6).hex()


def publish(repo: Repository, run: Run) -> None:
    """Publish a run, after its snapshot. Raises ObjectExists if the id exists.

    A fork needs the checkpoint that it starts from. Raises NotFound, ObjectDeleted if that is missing.
    """

    def create() -> None:
        repo.store.create(f"runs/{run.id}/run", codec.encode(run))

    if run.parent is None:
        create()
        return
    began = repo.objects.begin()
    reach = Reach(repo.objects)
    reach.checkpoint(run.parent.digest)
    if missing := presence.missing(repo.objects, {digest.hex(): 0 for digest in reach.digests}):
        raise NotFound(
            f"{len(missing)} objects of checkpoint {run.parent.name} are missing in the store",
            hint="Run `m5ws fsck` to list damage, and `m5ws show` to list checkpoints.",
        )
    publishing.publish(repo, lambda: reach.digests, create, began=began)


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
    """Publish the verdict of a replay, once. Raises ObjectExists if the replay has a verdict."""
    repo.store.create(f"runs/{verdict.replay}/verdict", codec.encode(verdict))


def verdict(repo: Repository, replay: Run) -> Verdict | None:
    """Return the verdict of a replay, or None if it has none. Raises CorruptObject, Misplaced, UnknownSchema."""
    try:
        loaded = bindings.record(repo.store, f"runs/{replay.id}/verdict", Verdict)
    except NotFound:
        return None
    bindings.check_verdict(loaded, replay)
    return loaded


def publish_joint(repo: Repository, joint: JointVerdict) -> None:
    """Publish a joint verdict of replays of segments. Existing joint verdicts stay unchanged."""
    stamp = f"{int(joint.created_s * 1000):014d}-{os.urandom(4).hex()}"
    bindings.create(repo.store, f"{joints_of(joint.run)}{stamp}", joint)


def joints_of(run_id: str) -> str:
    """Return the key prefix of the joint verdicts about a run."""
    return f"runs/{run_id}/joint/"


def joint(repo: Repository, run_id: str) -> JointVerdict | None:
    """Return the newest joint verdict about a run, or None. Raises CorruptObject, UnknownSchema."""
    newest = max(repo.store.names(joints_of(run_id)), default=None)
    if newest is None:
        return None
    return bindings.record(repo.store, f"{joints_of(run_id)}{newest}", JointVerdict)


def verdicts(repo: Repository, run_id: str, among: Sequence[Run] | None = None) -> list[Verdict]:
    """Return the verdicts that name a run, as the original or as a replay, oldest first.

    `among` has all runs, if the caller has read them.
    """
    run, everyone = load(repo, run_id), readable(repo) if among is None else among
    replayed = [run, *_replays(everyone, run_id), *(_replays(everyone, run.reproduces) if run.reproduces else ())]
    loaded = concurrency.each(lambda replay: verdict(repo, replay), {replay.id: replay for replay in replayed}.values())
    about = [item for item in loaded if item is not None and run_id in (item.run, *item.replays)]
    return sorted(about, key=lambda item: item.created_s)


def replays(repo: Repository, run_id: str) -> list[str]:
    """Return the ids of the runs that reproduce `run_id`, oldest first."""
    return [run.id for run in _replays(readable(repo), run_id)]


def _replays(among: Iterable[Run], run_id: str) -> list[Run]:
    return sorted((run for run in among if run.reproduces == run_id), key=lambda run: run.created_s)


UNREADABLE = (*errors.UNREADABLE, UsageError)
"""Errors of reading another run's record. An invalid id raises UsageError."""


def readable(repo: Repository) -> list[Run]:
    """Return all readable runs. A damaged run does not hide the others; fsck reports it."""

    def one(name: str) -> Run | None:
        try:
            return load(repo, name)
        except UNREADABLE:
            return None

    return [run for run in concurrency.each(one, ids(repo)) if run is not None]
