"""Locations of small files: the packings of trees, from this process or from annotations of loaded snapshots."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from m5ws.errors import UNREADABLE, CorruptObject, M5Error, NotFound
from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation
from m5ws.records.tree import Entry, Packing, Slice
from m5ws.repository import bindings, concurrency, presence
from m5ws.repository.files import packings
from m5ws.repository.objects import Objects

_log = logging.getLogger(__name__)
_DAY_S = 86_400.0


class PackLocations:
    """Maps trees to packings, and small files to packs. Reads from the store on first use only.

    A written tree has one packing. A tree of a snapshot has the packings in the snapshot's annotations.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._written: dict[Digest, Digest | None] = {}
        self._snapshots: dict[Digest, dict[Digest, None]] = {}
        self._annotated: dict[Digest, list[Mapping[Digest, Digest]]] = {}
        self._errors: dict[Digest, M5Error | OSError] = {}
        self._slices: dict[Digest, list[Slice]] | None = None
        self._lock = threading.Lock()
        self._warned = False

    def of(self, objects: Objects) -> "PackLocations":
        """Return the same locations, read through other `objects` of the same store."""
        locations = PackLocations(objects)
        locations._written = dict(self._written)
        locations._snapshots = {tree: dict(snapshots) for tree, snapshots in self._snapshots.items()}
        return locations

    def add_tree(self, tree: Digest, packing: Digest | None) -> None:
        """Add a tree with its stored packing; None if the tree has no small files."""
        self._written[tree] = packing

    def add_snapshot(self, snapshot: Digest, trees: Iterable[Digest]) -> None:
        """Add the trees of a snapshot. Its annotations are read when a location is needed."""
        self._annotated.pop(snapshot, None)
        self._slices = None
        for tree in trees:
            self._snapshots.setdefault(tree, {})[snapshot] = None

    def forget_trees(self) -> None:
        """Forget the trees of `add_tree`, because some of their objects were deleted."""
        self._written.clear()

    def written(self, tree: Digest) -> tuple[Digest | None] | None:
        """Return the packing of a tree of `add_tree` in a tuple, or None for another tree."""
        return (self._written[tree],) if tree in self._written else None

    def annotated(self, tree: Digest) -> Iterator[Digest]:
        """Yield the packings of a tree in annotations, newest first. Damaged annotations are skipped."""
        seen = set[Digest]()
        for snapshot in self._snapshots.get(tree, ()):
            for named in self._annotations(snapshot):
                if tree in named and named[tree] not in seen:
                    seen.add(named[tree])
                    yield named[tree]

    def error(self, tree: Digest) -> M5Error | OSError | None:
        """Return the last error from reading annotations of a snapshot with `tree`, or None."""
        return next(
            (self._errors[snapshot] for snapshot in self._snapshots.get(tree, ()) if snapshot in self._errors), None
        )

    def warns(self) -> bool:
        """Return True once, for the first file that is read from another pack."""
        with self._lock:
            first, self._warned = not self._warned, True
        return first

    def elsewhere(self, part: Slice) -> list[Slice]:
        """Return the other locations of the small file of `part`, from the annotations of all added snapshots.

        Unreadable packings are skipped.
        """
        with self._lock:
            if self._slices is None:
                self._slices = self._all_slices()
            slices = self._slices.get(part.digest, ())
        return [other for other in slices if other.size_bytes == part.size_bytes and other != part]

    def _annotations(self, snapshot: Digest) -> list[Mapping[Digest, Digest]]:
        """Return the packings of each annotation of a snapshot. After an error, the next call reads them again."""
        if snapshot in self._annotated:
            return self._annotated[snapshot]
        store = self._objects.store
        keys = [f"snapshots/{snapshot}/{name}" for name in store.names(f"snapshots/{snapshot}/")]
        errors: list[M5Error | OSError] = []
        packings_read = concurrency.for_each(partial(self._annotation, errors), _newest_first(keys))
        annotated = [by_tree for by_tree in packings_read if by_tree is not None]
        if errors:
            self._errors[snapshot] = errors[0]
        else:
            self._errors.pop(snapshot, None)
            self._annotated[snapshot] = annotated
        return annotated

    def _annotation(self, errors: list[M5Error | OSError], key: str) -> Mapping[Digest, Digest] | None:
        try:
            return bindings.record(self._objects.store, key, Annotation).packings
        except UNREADABLE:
            return None
        except (M5Error, OSError) as error:
            errors.append(error)
            return None

    def _all_slices(self) -> dict[Digest, list[Slice]]:
        by_file: dict[Digest, dict[Slice, None]] = {}
        named: dict[Digest, None] = {}
        for tree in list(self._snapshots):
            try:
                named |= dict.fromkeys(self.annotated(tree))
            except (M5Error, OSError) as error:
                _log.debug("annotations of tree %s: %s", tree, error)
        for digest in named:
            try:
                slices = list(packings.slices(self._objects.get_record(digest, Packing), digest))
            except (M5Error, OSError) as error:
                _log.debug("packing %s: %s", digest, error)
                continue
            for part in slices:
                by_file.setdefault(part.digest, {})[part] = None
        return {digest: list(parts) for digest, parts in by_file.items()}


def is_whole(
    objects: Objects, tree: Digest, entries: Sequence[Entry], packing: Digest, *, lenient: bool = True
) -> bool:
    """Return True if a packing names all small files of a tree, and all its packs exist.

    If `lenient`, because another packing can be used, an unreadable packing counts as incomplete. Otherwise the error
    is raised.
    """
    try:
        record = objects.get_record(packing, Packing)
        packings.filled(entries, record, tree, packing)
        needs = {pack.object: pack.size_bytes for pack in record.packs}
        return not presence.missing(objects, needs, lenient=True)
    except (NotFound, CorruptObject):
        return False
    except (M5Error, OSError):
        if lenient:
            return False
        raise


def _newest_first(keys: Iterable[str]) -> list[str]:
    """Return keys of annotations, newest first. One from the future has a wrong clock, and comes last."""
    latest = f"{int((time.time() + _DAY_S) * 1000):014d}"
    return sorted(keys, key=lambda key: (_stamp(key) <= latest, _stamp(key)), reverse=True)


def _stamp(key: str) -> str:
    return key.rpartition("/")[2]
