"""The one way to publish a reference: what it names was seen to be there, and no gc has taken it away since.

The writer's half of "Deleting" in docs/format.md, whose numbers stand here. A writer needs no lease, no clock and no
permission to delete. With no plan in the store it costs one `names` before the reference and one after.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from m5ws.errors import M5Error, NotFound, ObjectExists
from m5ws.records.gc import Keep
from m5ws.repository import bindings
from m5ws.repository import gc_plans as plans
from m5ws.repository.gc_plans import Patience, Standings
from m5ws.repository.repository import Repository

T = TypeVar("T")
_KEEP_DIGESTS = 2**20
_TRIES = 10
_POLL_S = (0.2, 5.0)


class Vanished(M5Error):
    """Objects that were seen to be there were deleted by `gc` before they were named."""

    hint = "Try again: what is missing is uploaded again."


class Deleting(M5Error):
    """A `gc` that deletes objects which are about to be named did not end in time."""


def repeated(attempt: Callable[[], T]) -> T:
    """Return what `attempt`, which uploads and publishes, returns; it is repeated if gc was in its way."""
    for _ in range(_TRIES - 1):
        try:
            return attempt()
        except Vanished:
            continue
    return attempt()


def publish(
    repo: Repository,
    needs: Callable[[], set[bytes]],
    create: Callable[[], None],
    *,
    patience: Patience | None = None,
    began: frozenset[str] | None = None,
    repair: Callable[[], object] | None = None,
) -> None:
    """Create a reference; `needs` returns all objects it leads to, and is asked only if a plan could be in the way.

    `began` is `Objects.begin` of the first process that looked at one of them. `repair` uploads what is missing;
    without it, Vanished is raised, and the caller uploads and publishes again: also after the reference was created,
    which nobody but a writer that slept through a whole grace period sees. Raises Deleting.
    """
    guard = _Guard(
        repo, needs, patience or repo.patience or Patience(), repo.objects.begin() if began is None else began, repair
    )
    guard.settle(published=False)
    # Published from here on (W4).
    create()
    guard.settle(published=True)


class _Guard:
    def __init__(
        self,
        repo: Repository,
        needs: Callable[[], set[bytes]],
        patience: Patience,
        began: frozenset[str],
        repair: Callable[[], object] | None,
    ) -> None:
        self._repo = repo
        self._needs = needs
        self._patience = patience
        self._settled = set(began)
        self._repair = repair
        self._digests: set[bytes] | None = None

    def settle(self, *, published: bool) -> None:
        """Return when no plan can take away what is needed: none is left that was not looked into (W2, W5)."""
        while True:
            found = plans.look(self._repo.store)
            # A plan that is not executed yet reads all references first, and so sees one that is published.
            waiting = frozenset[str]() if published else found.open
            threats = sorted((waiting | found.executing | found.done) - self._settled)
            if not threats:
                return
            for plan in threats:
                self._meet(plan, found)

    def _meet(self, plan: str, found: Standings) -> None:
        named = self._named(plan)
        if plan in found.open:
            if named and not self._kept(plan, named):
                return  # It began meanwhile: the next look finds it so.
        elif named:
            self._await(plan)
            self._check(plan, named)
        self._settled.add(plan)

    def _named(self, plan: str) -> set[bytes]:
        """Return what of the needed objects the plan names; all of them, if that cannot be told any more."""
        if self._digests is None:
            try:
                self._digests = self._needs()
            except NotFound as error:
                for executing in sorted(plans.look(self._repo.store).executing - self._settled):
                    self._await(executing)
                raise Vanished(f"gc deleted what was about to be published: {error}") from error
        try:
            return plans.named(self._repo.store, plan, self._digests)
        except NotFound:
            return self._digests

    def _kept(self, plan: str, named: set[bytes]) -> bool:
        """Say what is about to be named, then look: who begins after this look reads what was said (W2)."""
        for position, digests in enumerate(_pieces(sorted(named))):
            key = f"{plans.folder(plan, 'keep')}{os.urandom(8).hex()}-{position}"
            bindings.create(self._repo.store, key, Keep(digests=b"".join(digests)))
        return plan in plans.look(self._repo.store).open

    def _await(self, plan: str) -> None:
        """Return when the plan is done: only then can no object of it go away any more (W3)."""
        patience = self._patience
        end = time.monotonic() + patience.limit_s
        pause_s = _POLL_S[0]
        while plan not in plans.look(self._repo.store).done:
            if time.monotonic() >= end:
                raise Deleting(
                    f"gc has been executing plan {plan}, which names objects that are needed here, for too long",
                    hint=f"Nothing is lost: repeat this when `m5ws gc --execute {plan}` has ended.",
                )
            if patience.progress:
                patience.progress(f"waiting for gc plan {plan} to end", 0, 0)
            patience.pause(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])

    def _check(self, plan: str, named: set[bytes]) -> None:
        if all(self._repo.objects.has(digest.hex()) for digest in sorted(named)):
            return
        if self._repair is None:
            raise Vanished(f"gc plan {plan} deleted objects that were about to be published")
        self._repair()


def _pieces(digests: list[bytes]) -> Iterable[list[bytes]]:
    return (digests[start : start + _KEEP_DIGESTS] for start in range(0, len(digests), _KEEP_DIGESTS))


def create_once(repo: Repository, key: str, data: bytes) -> None:
    """Create a key that may be there with the same bytes. Raises ObjectExists if it has others."""
    try:
        repo.store.create(key, data)
    except ObjectExists:
        if repo.store.get(key) != data:
            raise
