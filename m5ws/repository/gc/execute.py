"""The second half of `gc`: deletes the unneeded objects of a plan, references first.

This is the executor's half of "Deleting" in docs/format.md; X1 to X6 are its steps. It may be killed at any moment and
started again, but never while another process executes the same plan: a late delete could hit an object that a writer
uploaded again. On one machine, a lock that the kernel frees prevents this. On several, a person must confirm it.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from m5ws import locks
from m5ws.errors import M5Error, NotFound, ObjectExists, UsageError
from m5ws.progress import Progress, report
from m5ws.records.gc import Garbage, GcExecution, GcPlan, GcResult
from m5ws.records.log import LOGS
from m5ws.repository import bindings, gc_plans, removals
from m5ws.repository.gc import roots
from m5ws.repository.gc.gc import store_now
from m5ws.repository.gc.roots import Workers, threads
from m5ws.repository.objects import key
from m5ws.repository.repository import Repository

GRACE_S = 24 * 3600.0
CLEARED_S = 30 * 24 * 3600.0
_BATCH = 1024


class DeleteRefused(M5Error):
    """The store denies deletes by this process."""

    hint = "Run gc with permission to delete (docs/how-to/free-space.md). The plan remains valid."


class ExecutedElsewhere(M5Error):
    """A plan is being executed from another workspace or machine, or its process there was killed."""


class DuePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A published plan that is not done. `wait_s` is the rest of its grace period, 0 once it is over."""

    plan: str
    wait_s: float


def due(repo: Repository, grace_s: float) -> DuePlan | None:
    """Return the oldest plan that is not done; one in progress comes first.

    Creates an object to read the store's clock.
    """
    state = gc_plans.read_states(repo.store)
    for name in sorted(state.executing):
        return DuePlan(plan=name, wait_s=0.0)
    for name in sorted(state.open):
        return DuePlan(plan=name, wait_s=_wait_s(repo, name, grace_s))
    return None


def resolve(repo: Repository, text: str) -> str:
    """Return the only plan that is not done and starts with `text`. Raises NotFound, UsageError."""
    state = gc_plans.read_states(repo.store)
    names = [name for name in sorted(state.open | state.executing) if name.startswith(text)]
    if len(names) > 1:
        raise UsageError(f"{text!r} matches {len(names)} plans: {', '.join(names)}")
    if not names:
        known = ", ".join(sorted(state.open | state.executing)) or "none"
        raise NotFound(f"no open plan matches {text!r}", hint=f"Open plans: {known}.")
    return names[0]


@contextmanager
def lock_gc(home: Path) -> Iterator[str]:
    """Hold this workspace's gc lock, and yield its name. The kernel frees it when the process ends.

    Raises UsageError if another gc of this workspace is running.
    """
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "gc.lock", "a+", encoding="ascii") as lock:
        if not locks.acquire(lock.fileno()):
            raise UsageError("another gc of this workspace is running", hint="Wait for its end.")
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
) -> GcResult:
    """Delete the objects of `plan` that nothing needs, and return a summary. `holder` is the name of the lock `alone`.

    `take_over` confirms that another process with this plan is dead. Raises UsageError before the end of the grace
    period, DeleteRefused, ExecutedElsewhere; NotFound if a needed object is missing, and the plan is then done.
    """
    if plan in gc_plans.read_states(repo.store).done:
        raise UsageError(f"plan {plan} is already done")
    head = gc_plans.head(repo.store, plan)
    wait_s = _wait_s(repo, plan, grace_s)
    if wait_s > 0 and plan not in gc_plans.read_states(repo.store).executing:
        raise UsageError(
            f"plan {plan} can be executed in {wait_s:.0f} s", hint="Wait, or set a shorter grace period with --grace."
        )
    # X1: from here on no writer relies on objects of the plan.
    _begin(repo, plan, holder, take_over)
    # X2 and X3, in this order: keeps, and then references, that were published before writers see X1.
    kept = gc_plans.keeps(repo.store, plan)
    planned = {roots.key(reference): reference for reference in gc_plans.retired(repo.store, plan, head)}
    try:
        needed = roots.read(
            repo,
            head.rules,
            lambda reference, _: roots.key(reference) in planned and bytes.fromhex(reference.digest) not in kept,
            progress,
            workers,
        )
    except NotFound as error:
        raise _end_early(repo, plan, head, error) from error
    # X4 before X5: a reference never names a deleted object.
    _delete(repo, map(roots.key, needed.retired), len(needed.retired), progress, workers)
    _delete_logs(repo, progress, workers)
    deleted, size_bytes = 0, 0
    for number in range(len(head.parts)):
        part = gc_plans.garbage(repo.store, plan, head, number)
        chosen = _choose(part, lambda digest: digest in kept or digest in needed.reach.digests)
        _delete(repo, (key(digest.hex()) for digest, _ in chosen), len(chosen), progress, workers)
        deleted += len(chosen)
        size_bytes += sum(size for _, size in chosen)
    gone = [reference for where, reference in planned.items() if repo.store.stat(where) is None]
    copies = sum(reference.outputs is not None for reference in gone)
    done = GcResult(
        checkpoints=len(gone) - copies,
        copies=copies,
        objects=deleted,
        size_bytes=size_bytes,
        spared=head.objects - deleted,
    )
    # X6: all deletes have returned.
    return bindings.create(repo.store, gc_plans.state_key(plan, "done"), done)


def _choose(part: Garbage, is_needed: Callable[[bytes], bool]) -> list[tuple[bytes, int]]:
    """Return digest and size in bytes of each object of a plan's part that nothing needs."""
    digests = enumerate(gc_plans.split(part.digests))
    return [
        (each, int.from_bytes(part.sizes[8 * at : 8 * at + 8], "little")) for at, each in digests if not is_needed(each)
    ]


def _end_early(repo: Repository, plan: str, head: GcPlan, error: NotFound) -> NotFound:
    """Mark a plan as done that found a needed object missing, and return the error to raise.

    X6 without X4 and X5: the writer of an incomplete reference may wait for the end of this plan to complete it.
    """
    nothing = GcResult(checkpoints=0, objects=0, size_bytes=0, spared=head.objects)
    bindings.create(repo.store, gc_plans.state_key(plan, "done"), nothing)
    return NotFound(
        f"plan {plan} ends early, and deletes nothing more: {error}",
        hint="If another command is about to publish this, run `m5ws gc` again later. "
        "If the error stays, `m5ws fsck` lists the damage.",
    )


def clear(repo: Repository, after: str, older_than_s: float = CLEARED_S) -> None:
    """Delete plans that were done, or left unpublished, long before plan `after`. Their `.done` records stay."""
    state = gc_plans.read_states(repo.store)
    ended = repo.store.stat(gc_plans.state_key(after, "done"))
    if ended is None:
        return
    for name in repo.store.names(gc_plans.PREFIX):
        if "." in name or name in state.open | state.executing | {after}:
            continue
        stats = [*repo.store.list(gc_plans.folder(name)), repo.store.stat(gc_plans.state_key(name, "done"))]
        newest_s = max((stat.modified_s for stat in stats if stat is not None), default=0.0)
        if ended.modified_s - newest_s < older_than_s:
            continue
        # The head goes first: a reader of a head relies on all parts, and treats a plan without a head as one for all
        # objects.
        keys = [gc_plans.state_key(name, "plan"), gc_plans.state_key(name, "executing")]
        keys += [stat.key for stat in stats[:-1] if stat is not None]
        for where in keys:
            _delete(repo, [where])


def _wait_s(repo: Repository, plan: str, grace_s: float) -> float:
    """Return the rest of a plan's grace period in seconds, by the store's clock."""
    published = repo.store.stat(gc_plans.state_key(plan, "plan"))
    if published is None:
        raise NotFound(f"no plan {plan}")
    return max(0.0, published.modified_s + grace_s - store_now(repo, plan))


def _begin(repo: Repository, plan: str, holder: str, take_over: bool) -> None:
    """Mark the plan as being executed, after a test that deletes are allowed."""
    probe = next(repo.store.list(gc_plans.folder(plan, "asked")), None)
    if probe is not None:
        _delete(repo, [probe.key])
    where = gc_plans.state_key(plan, "executing")
    try:
        bindings.create(repo.store, where, GcExecution(holder=holder, host=socket.gethostname()))
    except ObjectExists:
        previous = bindings.record(repo.store, where, GcExecution)
        # This workspace's lock is held here, so the previous holder in this workspace has ended.
        if previous.holder != holder and not take_over:
            raise ExecutedElsewhere(
                f"plan {plan} was started from another workspace, on {previous.host}, and is not done",
                hint=f"If that gc has certainly ended, run: m5ws gc --execute {plan} --take-over",
            ) from None


def _delete_logs(repo: Repository, progress: Progress | None, workers: Workers) -> None:
    """Delete the logs of removed runs: nothing names a part of a log. Runs without logs need no request."""
    removed = removals.removed_runs(repo) & set(repo.store.names(LOGS))
    logs = [stat.key for run in sorted(removed) for stat in repo.store.list(f"{LOGS}{run}/")]
    _delete(repo, logs, len(logs), progress, workers)


def _delete(
    repo: Repository, keys: Iterable[str], total: int = 1, progress: Progress | None = None, workers: Workers = threads
) -> None:
    """Delete keys in parallel. No delete is in progress when this returns or raises. Raises DeleteRefused."""
    remaining = iter(keys)
    done = 0
    with workers() as pool:
        while batch := list(islice(remaining, _BATCH)):
            for _ in pool.map(partial(_delete_one, repo), batch):
                pass
            done += len(batch)
            report(progress, "deleting", done, total)


def _delete_one(repo: Repository, where: str) -> None:
    try:
        repo.store.delete(where)
    except (M5Error, OSError) as error:
        raise DeleteRefused(f"cannot delete {where} from {repo.store.url}: {error}") from error
