"""Existence checks for many objects with few requests: LIST if they are dense, HEAD if they are sparse.

The cost is bounded. A listing that returns few of the objects is stopped, so that a small check in a store of millions
costs at most about one request per object.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from m5ws.records.base import Digest
from m5ws.repository.concurrency import for_each
from m5ws.repository.objects import Objects, check_length, key

_DENSE = 8
"""Number of objects under one two-digit prefix from which a listing is worth while."""
_WHOLE_EACH = 16
"""For each of this many objects, up to 1,000 stored objects may be listed before other requests."""
_LISTED_EACH = 250
"""A listing may return this many objects for each object that is checked: 1.25 requests each in total."""


def missing(objects: Objects, needs: Mapping[Digest, int], *, lenient: bool = False) -> set[Digest]:
    """Return the objects in `needs` (digest to minimum length in bytes) that do not exist.

    Raises CorruptObject if one is shorter; if `lenient`, it counts as missing.
    """
    objects.begin()
    ordered = sorted(needs)
    most = len(ordered) // _WHOLE_EACH * 1000
    sizes, last = _listed(objects, ordered, "objects/", most) if most else ({}, "")
    rest = [digest for digest in ordered if key(digest) > last]
    for existing in for_each(partial(_sizes, objects), _groups(rest)):
        sizes |= existing
    absent: set[Digest] = set()
    for digest in ordered:
        if digest not in sizes or (lenient and sizes[digest] < needs[digest]):
            absent.add(digest)
        elif sizes[digest] < needs[digest]:
            check_length(objects.store, digest, sizes[digest], needs[digest])
    return absent


def _groups(ordered: list[Digest]) -> Iterator[list[Digest]]:
    """Yield groups for one thread: a prefix's objects together if they are listed, otherwise one object each."""
    groups: dict[str, list[Digest]] = {}
    for digest in ordered:
        groups.setdefault(digest[:2], []).append(digest)
    for group in groups.values():
        if len(group) >= _DENSE:
            yield group
        else:
            yield from ([digest] for digest in group)


def _sizes(objects: Objects, group: list[Digest]) -> dict[Digest, int]:
    """Return the lengths of the objects of a group that exist."""
    sizes, last = dict[Digest, int](), ""
    if len(group) >= _DENSE:
        sizes, last = _listed(objects, group, f"objects/{group[0][:2]}/", _LISTED_EACH * len(group))
    for digest in group:
        if key(digest) > last and (existing := objects.store.stat(key(digest))) is not None:
            sizes[digest] = existing.size_bytes
    return sizes


def _listed(objects: Objects, group: list[Digest], prefix: str, most: int) -> tuple[dict[Digest, int], str]:
    """Return the lengths of a group's objects in a listing of `most` objects, and the last key that it covers."""
    wanted, sizes, last = {key(digest): digest for digest in group}, dict[Digest, int](), ""
    for position, listed in enumerate(objects.store.list(prefix)):
        if position >= most:
            return sizes, last
        last = listed.key
        if last in wanted:
            sizes[wanted[last]] = listed.size_bytes
        if last >= key(group[-1]):
            break
    return sizes, key(group[-1])
