"""The only way to publish a reference: its objects exist, and no gc has deleted them meanwhile.

This is the writer's half of "Deleting" in docs/format.md; W2 to W5 are its steps. A writer needs no lease, no clock and
no permission to delete. Without a plan in the store, the cost is one `names` before the reference and one after.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from m5ws.errors import Fenced, M5Error, NotFound, ObjectExists
from m5ws.records.base import Digest, Record
from m5ws.records.gc import Keep
from m5ws.repository import bindings, removals
from m5ws.repository import gc_plans as plans
from m5ws.repository.gc_plans import GcState, RetryPolicy
from m5ws.repository.reachability.reach import ReachableObjects
from m5ws.repository.repository import Repository

T = TypeVar("T")
_KEEP_DIGESTS = 2**20
_TRIES = 10
_POLL_S = (0.2, 5.0)


class ObjectDeleted(M5Error):
    """`gc` deleted objects after their existence check and before their publication."""

    hint = "Run the command again: missing objects are uploaded again."


class DeletionInProgress(M5Error):
    """A `gc` that deletes objects needed here did not end in time."""


def repeated(attempt: Callable[[], T]) -> T:
    """Return the result of `attempt`, which uploads and publishes. Retries after deletions by gc."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except ObjectDeleted:
            continue
    return attempt()


def publish(
    repo: Repository,
    needs: Callable[[], set[bytes]],
    create: Callable[[], None],
    *,
    run: str | None,
    patience: RetryPolicy | None = None,
    began: frozenset[str] | None = None,
    repair: Callable[[], object] | None = None,
) -> None:
    """Create a reference. `needs` returns all objects reachable from it, and is called only if a plan may affect them.

    `run` is the run that the reference belongs to, None for a reference that a removal of runs does not concern. Raises
    Removed if the run is removed: then `gc` may delete the reference, which no reader uses.
    `began` is the result of `Objects.begin` in the process with the first existence check. `repair` uploads missing
    objects. Without it, ObjectDeleted is raised, and the caller uploads and publishes again. ObjectDeleted can come
    after the reference was created, if a writer paused for a whole grace period. Raises DeletionInProgress.
    """
    began = repo.objects.begin() if began is None else began
    guard = _Guard(repo, needs, patience or repo.patience or RetryPolicy(), set(began), repair)
    guard.settle(published=False)
    try:
        # Published from here on (W4).
        create()
    except (M5Error, OSError):
        # `create` may have created several references before its error.
        guard.settle(published=True)
        raise
    guard.settle(published=True)
    if run is not None:
        # After the reference: a removal that this look does not meet was published later, and its `rm` lists the
        # reference.
        removals.fence(repo, run)


@dataclass
class _Guard:
    _repo: Repository
    _needs: Callable[[], set[bytes]]
    _patience: RetryPolicy
    _settled: set[str]
    _repair: Callable[[], object] | None
    _digests: set[bytes] | None = None

    def settle(self, *, published: bool) -> None:
        """Return when no plan can delete a needed object: every plan has been examined (W2, W5)."""
        while True:
            state = plans.read_states(self._repo.store)
            # A plan that is not executed yet reads all references first, and so finds a published reference.
            waiting = frozenset[str]() if published else state.open
            threats = sorted((waiting | state.executing | state.done) - self._settled)
            if not threats:
                return
            for plan in threats:
                self._meet(plan, state)

    def _meet(self, plan: str, state: GcState) -> None:
        named = self._named(plan)
        if plan in state.open:
            if named and not self._kept(plan, named):
                return  # Its execution started meanwhile; the next look shows it.
        elif named:
            self._await(plan)
            self._check(plan, named)
        self._settled.add(plan)

    def _named(self, plan: str) -> set[bytes]:
        """Return the needed objects that the plan names; all of them if the plan was deleted."""
        if self._digests is None:
            try:
                self._digests = self._needs()
            except NotFound as error:
                for executing in sorted(plans.read_states(self._repo.store).executing - self._settled):
                    self._await(executing)
                raise ObjectDeleted(f"gc deleted objects that were about to be published: {error}") from error
        try:
            return plans.select_named(self._repo.store, plan, self._digests)
        except NotFound:
            return self._digests

    def _kept(self, plan: str, named: set[bytes]) -> bool:
        """Publish keeps, then look: an execution that starts after this look reads the keeps (W2)."""
        digests = sorted(named)
        for start in range(0, len(digests), _KEEP_DIGESTS):
            key = f"{plans.folder(plan, 'keep')}{os.urandom(8).hex()}-{start}"
            bindings.create(self._repo.store, key, Keep(digests=b"".join(digests[start : start + _KEEP_DIGESTS])))
        return plan in plans.read_states(self._repo.store).open

    def _await(self, plan: str) -> None:
        """Return when the plan is done: only then is no more object of it deleted (W3)."""
        patience = self._patience
        end = time.monotonic() + patience.limit_s
        pause_s = _POLL_S[0]
        while plan not in plans.read_states(self._repo.store).done:
            if time.monotonic() >= end:
                raise DeletionInProgress(
                    f"gc is still executing plan {plan}, which names objects that are needed here",
                    hint=f"Run the command again after `m5ws gc --execute {plan}` has ended. Nothing is lost.",
                )
            if patience.progress:
                patience.progress(f"waiting for gc plan {plan} to end", 0, 0)
            patience.pause(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])

    def _check(self, plan: str, named: set[bytes]) -> None:
        if all(self._repo.objects.has(digest.hex()) for digest in sorted(named)):
            return
        if self._repair is None:
            raise ObjectDeleted(f"gc plan {plan} deleted objects that were about to be published")
        self._repair()


def publish_record(
    repo: Repository,
    key: str,
    digest: Digest,
    kind: type[Record],
    *,
    run: str,
    patience: RetryPolicy | None = None,
    began: frozenset[str] | None = None,
) -> None:
    """Create the reference to a durable record with durable content: a line with the record's digest.

    Raises Fenced if the key has another line; otherwise as `publish`.
    """

    def needs() -> set[bytes]:
        reach = ReachableObjects(repo.objects)
        reach.record(digest, kind)
        return reach.digests

    def create() -> None:
        try:
            # Published from here on.
            create_once(repo, key, f"{digest}\n".encode())
        except ObjectExists as error:
            raise Fenced(f"{key} exists with different content") from error

    publish(repo, needs, create, run=run, patience=patience, began=began)


def create_once(repo: Repository, key: str, data: bytes) -> None:
    """Create a key that may exist with the same bytes. Raises ObjectExists if it has other bytes."""
    try:
        repo.store.create(key, data)
    except ObjectExists:
        if repo.store.get(key) != data:
            raise
