"""Which of many objects a store has, learnt with few requests: one for many objects where the wanted ones lie close
together among what is there, one for an object where they do not.

Both ends are bounded. A listing of a part of the store that shows few of the wanted objects is given up, so that
a small question to a store of millions costs about one request an object at most.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.repository.objects import Objects, key

_THREADS = 16
_DENSE = 8
"""So many wanted objects under one two-digit prefix make a listing of it worth while."""
_WHOLE_EACH = 16
"""For so many wanted objects, a thousand of what there is may be listed before anything else is tried."""
_LISTED_EACH = 250
"""A listing is a fourth of a thousand objects for each wanted one: with a thousand to an answer, 1.25 requests each."""


def missing(objects: Objects, needs: Mapping[Digest, int], *, lenient: bool = False) -> set[Digest]:
    """Return which of `needs` (digest to the least length in bytes) are not there.

    Raises CorruptObject if one is there and shorter; to the `lenient` it is not there.
    """
    objects.begin()
    ordered = sorted(needs)
    budget = len(ordered) // _WHOLE_EACH * 1000
    seen, last = _listed(objects, ordered, "objects/", budget) if budget else ({}, "")
    found = set(_judged(ordered, seen, last, needs, lenient))
    groups: dict[str, list[Digest]] = {}
    for digest in (digest for digest in ordered if digest > last):
        groups.setdefault(digest[:2], []).append(digest)
    if len(needs) <= 1 or not groups:
        return found.union(*(_absent(objects, group, needs, lenient) for group in groups.values()))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-presence") as pool:
        jobs = [pool.submit(_listed_absent, objects, group, needs, lenient) for group in _jobs(groups)]
        return found.union(*(job.result() for job in jobs))


def _jobs(groups: Mapping[str, list[Digest]]) -> Iterator[list[Digest]]:
    """Yield what one thread asks for: a prefix's objects together where they are listed, else each for itself."""
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
        if digest > last and (found := objects.store.stat(key(digest))) is not None:
            seen[digest] = found.size_bytes
    yield from _judged(group, seen, group[-1], needs, lenient)


def _listed_absent(objects: Objects, group: list[Digest], needs: Mapping[Digest, int], lenient: bool) -> list[Digest]:
    return list(_absent(objects, group, needs, lenient))


def _judged(
    ordered: list[Digest], seen: Mapping[Digest, int], last: Digest, needs: Mapping[Digest, int], lenient: bool
) -> Iterator[Digest]:
    """Yield which objects, of those up to `last`, are not among the `seen` ones."""
    for digest in ordered:
        if digest > last:
            return
        if digest not in seen or (lenient and seen[digest] < needs[digest]):
            yield digest
        elif seen[digest] < needs[digest]:
            raise CorruptObject(f"object {digest} has {seen[digest]} bytes instead of {needs[digest]}")


def _listed(objects: Objects, group: list[Digest], prefix: str, budget: int) -> tuple[dict[Digest, int], Digest]:
    """Return the wanted objects that a listing showed, with their lengths, and up to which digest it tells."""
    wanted, seen = set(group), dict[Digest, int]()
    last = ""
    for position, found in enumerate(objects.store.list(prefix)):
        digest = found.key.rpartition("/")[2]
        if position >= budget:
            return seen, last
        last = digest
        if digest in wanted:
            seen[digest] = found.size_bytes
        if found.key >= key(group[-1]):
            break
    return seen, group[-1]
