"""Downloads the starting data of a snapshot or run to this machine's cache in advance.

The cache is the only state, so a repeated prefetch continues with the missing objects.
"""

from functools import partial

import msgspec

from m5ws.access import PathDenied
from m5ws.errors import M5Error
from m5ws.progress import Progress, report
from m5ws.records.base import Digest
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.objects import key
from m5ws.repository.references.ids import Kind
from m5ws.repository.repository import Repository
from m5ws.repository.transfer import closure
from m5ws.store.cache.cache import CachedStore


class DoesNotFit(M5Error):
    """The objects do not fit into the cache."""

    hint = "Increase [store] cache_limit in m5ws.toml."


class PrefetchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a snapshot or run starts from, and objects missing on this machine. `cached`: there is a cache.

    Sizes are in bytes. Sizes of packs are minimums.
    """

    kind: Kind
    id: Digest
    cached: bool
    objects: int
    size_bytes: int
    missing: int
    missing_bytes: int
    capacity_bytes: int | None
    fetch: dict[Digest, int]

    @property
    def fits(self) -> bool:
        """Return True if the cache can hold all of it at once."""
        return self.capacity_bytes is None or self.size_bytes <= self.capacity_bytes


def plan(repo: Repository, kind: Kind, identifier: str) -> PrefetchPlan:
    """Return the plan of a prefetch. It reads the records, which are in the cache afterwards. Raises NotFound."""
    near = repo.store if isinstance(repo.store, CachedStore) else None
    needs = closure.start(repo, kind, identifier)
    fetch = {} if near is None else {digest: size for digest, size in needs.items() if not _held(near, digest, size)}
    return PrefetchPlan(
        kind=kind,
        id=identifier,
        cached=near is not None,
        objects=len(needs),
        size_bytes=sum(needs.values()),
        missing=len(fetch),
        missing_bytes=sum(fetch.values()),
        capacity_bytes=None if near is None else near.capacity_bytes,
        fetch=fetch,
    )


def apply(repo: Repository, planned: PrefetchPlan, progress: Progress | None = None) -> None:
    """Fetch missing objects, in parallel and verified. Raises DoesNotFit, NotFound, CorruptObject.

    Raises M5Error if other work on this machine has evicted the fetched objects.
    """
    check(planned)
    done = 0
    jobs: list[Job[bytes]] = [(size, partial(repo.objects.get, digest)) for digest, size in planned.fetch.items()]
    for size, _ in zip(planned.fetch.values(), bounded_map(jobs), strict=True):
        done += size
        report(progress, "fetching", done, planned.missing_bytes)
    near = repo.store
    if isinstance(near, CachedStore) and (lost := sum(not _held(near, *each) for each in planned.fetch.items())):
        raise _lost(near, lost)


def _lost(near: CachedStore, count: int) -> M5Error:
    """Return the error for objects that were fetched, and are not in the cache."""
    message = f"{count} fetched objects are not in the cache {near.name}"
    if near.problem is None:
        return M5Error(message, hint="Increase [store] cache_limit: other work may have filled the cache.")
    hint = near.problem.hint if isinstance(near.problem, PathDenied) else ""
    hint = f"{hint} [store] cache in m5ws.toml sets the folder of the cache.".lstrip()
    return M5Error(f"{message}: {near.problem}", hint=hint)


def check(planned: PrefetchPlan) -> None:
    """Raise DoesNotFit if the cache is too small for the plan."""
    if not planned.fits:
        raise DoesNotFit(
            f"{planned.kind} {planned.id} needs {planned.size_bytes:,} bytes, but the cache holds"
            f" {planned.capacity_bytes:,}"
        )


def _held(near: CachedStore, digest: Digest, size: int) -> bool:
    """Return True if there is a copy. Its bytes are checked when they are used, and replaced after damage."""
    size_bytes = near.cached_size(key(digest))
    return size_bytes is not None and size_bytes >= size
