"""Existence checks for many objects with few requests: LIST if they are dense, HEAD if they are sparse.

The cost is bounded. A listing that returns few of the objects is stopped, so that a small check in a store of millions
costs at most about one request per object.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.repository.objects import Objects, key

_THREADS = 16
_DENSE = 8
"""Number of objects under one two-digit prefix from which a listing is worth while."""
_WHOLE_EACH = 16
"""For each of this many objects, up to 1,000 stored objects may be listed before other requests."""
_LISTED_EACH = 250
"""A listing may return this many objects for each one that is checked: 1.25 requests each in total."""


def missing(objects: Objects, needs: Mapping[Digest, int], *, lenient: bool = False) -> set[Digest]:
    """Return the objects in `needs` (digest to minimum length in bytes) that do not exist.

    Raises CorruptObject if one is shorter; if `lenient`, it counts as missing.
    """
    objects.begin()
    ordered = sorted(needs)
    budget = len(ordered) // _WHOLE_EACH * 1000
    seen, last = _listed(objects, ordered, "objects/", budget) if budget else ({}, "")
    absent = set(_judged(ordered, seen, last, needs, lenient))
    groups: dict[str, list[Digest]] = {}
    for digest in (digest for digest in ordered if digest > last):
        groups.setdefault(digest[:2], []).append(digest)
    if len(needs) <= 1 or not groups:
        return absent.union(*(_absent(objects, group, needs, lenient) for group in groups.values()))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-presence") as pool:
        jobs = [pool.submit(_listed_absent, objects, group, needs, lenient) for group in _jobs(groups)]
        return absent.union(*(job.result() for job in jobs))


def _jobs(groups: Mapping[str, list[Digest]]) -> Iterator[list[Digest]]:
    """Yield groups for one thread: a prefix's objects together if they are listed, otherwise one object each."""
    for group in groups.values():
        if len(group) >= _DENSE:
            yield group
        else:
            yield from ([digest] for digest in group)


def _absent(objects: Objects, group: list[Digest], needs: Mapping[Digest, int], lenient: bool) -> Iterator[Digest]:
    seen, last = dict[Digest, int](), ""
    if len(group) >= _DENSE:
        seen, last = _listed(objects, group, f"objects/{group[0][:2]}/", _LISTED_EACH * len(group))
    for digest in group:
        if digest > last and (existing := objects.store.stat(key(digest))) is not None:
            seen[digest] = existing.size_bytes
    yield from _judged(group, seen, group[-1], needs, lenient)


def _listed_absent(objects: Objects, group: list[Digest], needs: Mapping[Digest, int], lenient: bool) -> list[Digest]:
    return list(_absent(objects, group, needs, lenient))


def _judged(
    ordered: list[Digest], seen: Mapping[Digest, int], last: Digest, needs: Mapping[Digest, int], lenient: bool
) -> Iterator[Digest]:
    """Yield the missing objects among those up to `last`, by the sizes in `seen`."""
    for digest in ordered:
        if digest > last:
            return
        if digest not in seen or (lenient and seen[digest] < needs[digest]):
            yield digest
        elif seen[digest] < needs[digest]:
            raise CorruptObject(f"object {digest} has {seen[digest]} bytes instead of {needs[digest]}")


def _listed(objects: Objects, group: list[Digest], prefix: str, budget: int) -> tuple[dict[Digest, int], Digest]:
    """Return the lengths of the objects found by a listing, and the last digest that the listing covers."""
    wanted, seen = set(group), dict[Digest, int]()
    last = ""
    for position, listed in enumerate(objects.store.list(prefix)):
        digest = listed.key.rpartition("/")[2]
        if position >= budget:
            return seen, last
        last = digest
        if digest in wanted:
            seen[digest] = listed.size_bytes
        if listed.key >= key(group[-1]):
            break
    return seen, group[-1]
