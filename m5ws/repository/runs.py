"""Runs and their verdicts: written once, under the run's own name."""

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
    """Return a fresh run id: 12 hex digits."""
    return os.urandom(6).hex()


def publish(repo: Repository, run: Run) -> None:
    """Publish a run, whose snapshot is published already. Raises ObjectExists if its id is taken.

    Of a fork, the checkpoint that it starts from is needed from here on. Raises NotFound, Vanished if it is gone.
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
            f"{len(missing)} objects of checkpoint {run.parent.name} are not in the store",
            hint="`m5ws fsck` says what is damaged, `m5ws show` which checkpoints there are.",
        )
    publishing.publish(repo, lambda: reach.digests, create, began=began)


def load(repo: Repository, run_id: str) -> Run:
    """Return a run. Raises NotFound, CorruptObject, UnknownSchema."""
    try:
        return bindings.record(repo.store, f"runs/{run_id}/run", Run)
    except NotFound as error:
        raise NotFound(f"there is no run {run_id}") from error


def ids(repo: Repository) -> list[str]:
    """Return the ids of all runs, in the order of their ids."""
    return list(repo.store.names("runs/"))


def publish_verdict(repo: Repository, verdict: Verdict) -> None:
    """Publish what a replay found, once, under the replay. Raises ObjectExists if it has a verdict."""
    repo.store.create(f"runs/{verdict.replay}/verdict", codec.encode(verdict))


def verdict(repo: Repository, replay: Run) -> Verdict | None:
    """Return the verdict of a replay, or None while it has none. Raises CorruptObject, Misplaced, UnknownSchema."""
    try:
        found = bindings.record(repo.store, f"runs/{replay.id}/verdict", Verdict)
    except NotFound:
        return None
    bindings.check_verdict(found, replay)
    return found


def publish_joint(repo: Repository, joint: JointVerdict) -> None:
    """Publish what replays of segments say together, beside what others have said; none is ever changed."""
    stamp = f"{int(joint.created_s * 1000):014d}-{os.urandom(4).hex()}"
    bindings.create(repo.store, f"{joints_of(joint.run)}{stamp}", joint)


def joints_of(run_id: str) -> str:
    """Return the prefix of the keys under which joint verdicts on a run are."""
    return f"runs/{run_id}/joint/"


def joint(repo: Repository, run_id: str) -> JointVerdict | None:
    """Return the newest joint verdict on a run, or None. Raises CorruptObject, UnknownSchema."""
    newest = max(repo.store.names(joints_of(run_id)), default=None)
    if newest is None:
        return None
    return bindings.record(repo.store, f"{joints_of(run_id)}{newest}", JointVerdict)


def verdicts(repo: Repository, run_id: str, among: Sequence[Run] | None = None) -> list[Verdict]:
    """Return the verdicts that name a run, as the original or as a replay, oldest first.

    `among`: all runs, if the caller has read them.
    """
    run, everyone = load(repo, run_id), readable(repo) if among is None else among
    replayed = [run, *_replays(everyone, run_id), *(_replays(everyone, run.reproduces) if run.reproduces else ())]
    found = concurrency.each(lambda one: verdict(repo, one), {one.id: one for one in replayed}.values())
    said = [one for one in found if one is not None and run_id in (one.run, *one.replays)]
    return sorted(said, key=lambda one: one.created_s)


def replays(repo: Repository, run_id: str) -> list[str]:
    """Return the ids of the runs that reproduce `run_id`, oldest first."""
    return [run.id for run in _replays(readable(repo), run_id)]


def _replays(among: Iterable[Run], run_id: str) -> list[Run]:
    return sorted((run for run in among if run.reproduces == run_id), key=lambda run: run.created_s)


UNREADABLE = (*errors.UNREADABLE, UsageError)
"""What reading another's record can raise; a name that is no key is a UsageError."""


def readable(repo: Repository) -> list[Run]:
    """Return all runs but those that cannot be read: one damaged run does not hide the others, and fsck names it."""

    def one(name: str) -> Run | None:
        try:
            return load(repo, name)
        except UNREADABLE:
            return None

    return [run for run in concurrency.each(one, ids(repo)) if run is not None]
