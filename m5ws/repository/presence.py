"""Which of many objects a store has, learnt with few requests: one for many objects where the wanted ones lie close
together among what is there, one for an object where they do not.

Both ends are bounded. A listing of a part of the store that shows few of the wanted objects is given up, so that
a small question to a store of millions costs about one request an object at most.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from m5ws.errors import CorruptObject
from m5ws.records import Digest
from m5ws.repository.objects import Objects, key

_THREADS = 16
_DENSE = 8
"""So many wanted objects under one two-digit prefix make a listing of it worth while."""
_LISTED_EACH = 250
"""A listing is a fourth of a thousand objects for each wanted one: with a thousand to an answer, 1.25 requests each."""


def missing(objects: Objects, needs: Mapping[Digest, int]) -> set[Digest]:
    """Return which of `needs` (digest to the least length in bytes) are not there.

    Raises CorruptObject if one is there and shorter.
    """
    groups: dict[str, list[Digest]] = {}
    for digest in sorted(needs):
        groups.setdefault(digest[:2], []).append(digest)
    if len(needs) == 1:
        return set(_absent(objects, next(iter(groups.values())), needs))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="m5ws-presence") as pool:
        jobs = [pool.submit(lambda group=group: list(_absent(objects, group, needs))) for group in _jobs(groups)]  # type: ignore[misc]
        return {digest for job in jobs for digest in job.result()}


def _jobs(groups: Mapping[str, list[Digest]]) -> Iterator[list[Digest]]:
    """Yield what one thread asks for: a prefix's objects together where they are listed, else each for itself."""
    for group in groups.values():
        if len(group) >= _DENSE:
            yield group
        else:
            yield from ([digest] for digest in group)


def _absent(objects: Objects, group: list[Digest], needs: Mapping[Digest, int]) -> Iterator[Digest]:
    seen, last = _listed(objects, group) if len(group) >= _DENSE else ({}, "")
    for digest in group:
        if digest <= last:
            size = seen.get(digest)
        else:
            found = objects.store.stat(key(digest))
            size = None if found is None else found.size_bytes
        if size is None:
            yield digest
        elif size < needs[digest]:
            raise CorruptObject(f"object {digest} has {size} bytes instead of {needs[digest]}")


def _listed(objects: Objects, group: list[Digest]) -> tuple[dict[Digest, int], Digest]:
    """Return the wanted objects that a listing showed, with their lengths, and up to which digest it tells."""
    wanted, seen = set(group), dict[Digest, int]()
    for position, found in enumerate(objects.store.list(f"objects/{group[0][:2]}/")):
        digest = found.key.rpartition("/")[2]
        if position >= _LISTED_EACH * len(group):
            return seen, digest
        if digest in wanted:
            seen[digest] = found.size_bytes
        if found.key >= key(group[-1]):
            break
    return seen, group[-1]
