"""The second half of `gc`: deletes what a plan names and nothing has come to need, references before objects.

The executor's half of "Deleting" in docs/format.md, whose numbers stand here. It may be killed at any moment and begun
again, but never while another process executes the same plan: a delete that comes late could hit what a writer has
uploaded again. A lock that the kernel frees tells on one machine; for another, a person must say it.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from m5ws import locks
from m5ws.errors import M5Error, NotFound, ObjectExists, UsageError
from m5ws.progress import Progress
from m5ws.records.gc import Done, Executing
from m5ws.repository import bindings, gc_plans
from m5ws.repository.gc import roots
from m5ws.repository.gc.gc import store_now
from m5ws.repository.gc.roots import Workers, threads
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository

GRACE_S = 24 * 3600.0
CLEARED_S = 30 * 24 * 3600.0
_BATCH = 1024


class DeleteRefused(M5Error):
    """The store does not let this process delete."""

    hint = "gc needs permission to delete (docs/how-to/free-space.md); nothing else does. The plan stays as it is."


class ExecutedElsewhere(M5Error):
    """A plan is being executed, or was until its process was killed, from another workspace or machine."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was published and is not done; `wait_s` is what is left of the grace period, 0 once it is over."""

    plan: str
    wait_s: float
    begun: bool


def due(repo: Repository, grace_s: float) -> Due | None:
    """Return the oldest plan that is not done: one that has begun before one that has not. Writes a clock's object."""
    found = gc_plans.look(repo.store)
    for name in sorted(found.executing):
        return Due(plan=name, wait_s=0.0, begun=True)
    for name in sorted(found.open):
        return Due(plan=name, wait_s=_wait_s(repo, name, grace_s), begun=False)
    return None


def resolve(repo: Repository, text: str) -> str:
    """Return the one plan that is not done and begins with `text`. Raises NotFound, UsageError."""
    found = gc_plans.look(repo.store)
    names = [name for name in sorted(found.open | found.executing) if name.startswith(text)]
    if len(names) > 1:
        raise UsageError(f"{text!r} stands for {len(names)} plans: {', '.join(names)}")
    if not names:
        known = ", ".join(sorted(found.open | found.executing)) or "none"
        raise NotFound(f"there is no plan {text!r} that is not done", hint=f"Plans that are not done: {known}.")
    return names[0]


@contextmanager
def alone(home: Path) -> Iterator[str]:
    """Hold this workspace's lock on gc, and yield the lock's name; the kernel frees it when the process ends.

    Raises UsageError if another gc of this workspace is at work.
    """
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "gc.lock", "a+", encoding="ascii") as lock:
        if not locks.acquire(lock.fileno()):
            raise UsageError("another gc of this workspace is at work", hint="Wait until it has ended.")
        lock.seek(0)
        name = lock.read().strip()
        if not name:
            name = os.urandom(16).hex()
            lock.write(name)
            lock.flush()
        yield name


def execute(
    repo: Repository,
    plan: str,
    holder: str,
    *,
    grace_s: float = GRACE_S,
    take_over: bool = False,
    progress: Progress | None = None,
    workers: Workers = threads,
) -> Done:
    """Delete what `plan` names and nothing needs, and return what that was. `holder` is the lock that `alone` yields.

    `take_over`: whoever executed this plan elsewhere is known to be dead. Raises UsageError before the grace period is
    over, DeleteRefused, ExecutedElsewhere.
    """
    if plan in gc_plans.look(repo.store).done:
        raise UsageError(f"plan {plan} is done")
    head = gc_plans.head(repo.store, plan)
    wait_s = _wait_s(repo, plan, grace_s)
    begun = plan in gc_plans.look(repo.store).executing
    if wait_s > 0 and not begun:
        raise UsageError(f"plan {plan} may be executed in {wait_s:.0f} s", hint="--grace says how long writers get.")
    # X1: from here on no writer relies on what the plan names.
    _begin(repo, plan, holder, take_over)
    # X2 and X3, in this order: what was said, or published, before X1 is seen.
    kept = gc_plans.keeps(repo.store, plan)
    planned = {roots.key(one): one for one in gc_plans.retired(repo.store, plan, head)}
    found = roots.read(
        repo,
        head.rules,
        lambda one, _: roots.key(one) in planned and bytes.fromhex(one.digest) not in kept,
        progress,
        workers,
    )
    # X4 before X5: a reference never names what is gone.
    _delete(repo, map(roots.key, found.retired), len(found.retired), progress, workers)
    deleted, size_bytes = 0, 0
    for number in range(len(head.parts)):
        part = gc_plans.garbage(repo.store, plan, head, number)
        chosen = [
            (digest, part.sizes[8 * position : 8 * position + 8])
            for position, digest in enumerate(gc_plans.split(part.digests))
            if digest not in kept and digest not in found.reach.digests
        ]
        _delete(repo, (key(digest.hex()) for digest, _ in chosen), len(chosen), progress, workers)
        deleted += len(chosen)
        size_bytes += sum(int.from_bytes(size, "little") for _, size in chosen)
    gone = [one for where, one in planned.items() if repo.store.stat(where) is None]
    copies = sum(one.outputs is not None for one in gone)
    done = Done(
        checkpoints=len(gone) - copies,
        copies=copies,
        objects=deleted,
        size_bytes=size_bytes,
        spared=head.objects - deleted,
    )
    # X6: all deletes have returned.
    return bindings.create(repo.store, gc_plans.done_key(plan), done)


def clear(repo: Repository, after: str, older_than_s: float = CLEARED_S) -> None:
    """Delete plans that were done, or left unpublished, long before plan `after` was; what they did, `.done`, stays."""
    standings = gc_plans.look(repo.store)
    ended = repo.store.stat(gc_plans.done_key(after))
    if ended is None:
        return
    for name in repo.store.names(gc_plans.PREFIX):
        if "." in name or name in standings.open | standings.executing | {after}:
            continue
        stats = [*repo.store.list(gc_plans.folder(name)), repo.store.stat(gc_plans.done_key(name))]
        newest_s = max((stat.modified_s for stat in stats if stat is not None), default=0.0)
        if ended.modified_s - newest_s < older_than_s:
            continue
        # The head goes first: who finds it finds all parts, or takes the plan for one that could name anything.
        keys = [gc_plans.head_key(name), gc_plans.executing_key(name)]
        keys += [stat.key for stat in stats[:-1] if stat is not None]
        for where in keys:
            _delete(repo, [where])


def _wait_s(repo: Repository, plan: str, grace_s: float) -> float:
    """Return what is left of a plan's grace period, by the store's clock."""
    published = repo.store.stat(gc_plans.head_key(plan))
    if published is None:
        raise NotFound(f"there is no plan {plan}")
    return max(0.0, published.modified_s + grace_s - store_now(repo, plan))


def _begin(repo: Repository, plan: str, holder: str, take_over: bool) -> None:
    """Say that the plan is being executed, once it is known that deleting is allowed."""
    asked = next(repo.store.list(gc_plans.folder(plan, "asked")), None)
    if asked is not None:
        _delete(repo, [asked.key])
    where = gc_plans.executing_key(plan)
    try:
        bindings.create(repo.store, where, Executing(holder=holder, host=socket.gethostname()))
    except ObjectExists:
        before = bindings.record(repo.store, where, Executing)
        # This workspace's lock is held here, so whoever held it then has ended.
        if before.holder != holder and not take_over:
            raise ExecutedElsewhere(
                f"plan {plan} was begun from another workspace, on {before.host}, and is not done",
                hint=f"If that gc is certain to have ended: m5ws gc --execute {plan} --take-over",
            ) from None


def _delete(
    repo: Repository, keys: Iterable[str], total: int = 1, progress: Progress | None = None, workers: Workers = threads
) -> None:
    """Delete keys in parallel; when this returns, or raises, no delete is under way. Raises DeleteRefused."""
    remaining = iter(keys)
    done = 0
    with workers() as pool:
        while batch := list(islice(remaining, _BATCH)):
            for _ in pool.map(_deleting(repo), batch):
                pass
            done += len(batch)
            if progress:
                progress("deleting", done, total)


def _deleting(repo: Repository) -> Callable[[str], None]:
    def delete(where: str) -> None:
        try:
            repo.store.delete(where)
        except (M5Error, OSError) as error:
            raise DeleteRefused(f"{where} could not be deleted from {repo.store.url}: {error}") from error

    return delete
