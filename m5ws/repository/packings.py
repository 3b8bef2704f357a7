"""Where small files lie: trees name them by content alone, and a packing beside a tree says which packs hold them.

So a tree is a pure function of its files, and what the store had before decides only what is sent (docs/format.md).
"""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from m5ws.errors import CorruptObject, M5Error, NotFound, UnknownSchema
from m5ws.ports import ObjectStore
from m5ws.records import OBJECT_BYTES, Annotation, Digest, Entry, Pack, Packing, Slice
from m5ws.repository import bindings, flight

if TYPE_CHECKING:
    from m5ws.repository.objects import Objects

UNSOUND = (NotFound, CorruptObject, UnknownSchema)
"""What reading a record raises that is not there, damaged, or of another version."""
_LISTED = 5000
_RECENT = 4
_DAY_S = 86_400.0


class Told:
    """Which packings this process knows of: those that it wrote, and, when asked for, those that annotations name."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[Digest, Digest | None] = {}
        self._snapshots: dict[Digest, dict[Digest, None]] = {}
        self._said: dict[Digest, list[dict[Digest, Digest]]] = {}
        self._recent: list[Pack] | None = None
        self._places: dict[Digest, list[Slice]] | None = None
        self._placing = threading.Lock()
        self._warned = False
        self._troubles: dict[Digest, M5Error | OSError] = {}

    def of(self, tree: Digest, packing: Digest | None) -> None:
        """Note the packing of a tree, which is in the store; None if the tree has no small files."""
        self._known[tree] = packing

    def by(self, snapshot: Digest, trees: Iterable[Digest]) -> None:
        """Note that the annotations of `snapshot` name the packings of its `trees`."""
        self._said.pop(snapshot, None)
        self._places = None
        for tree in trees:
            self._snapshots.setdefault(tree, {})[snapshot] = None

    def forget(self) -> None:
        """Forget which packings were written: some of what was there has vanished."""
        self._known.clear()

    def known(self, tree: Digest) -> tuple[Digest | None] | None:
        """Return a tree's packing, alone in a tuple, if it was noted."""
        return (self._known[tree],) if tree in self._known else None

    def said(self, tree: Digest) -> Iterator[Digest]:
        """Yield a tree's packings of which annotations tell, newest first. What is damaged is mute."""
        seen = set[Digest]()
        for snapshot in self._snapshots.get(tree, ()):
            for said in self._said_of(snapshot):
                packing = said.get(tree)
                if packing is not None and packing not in seen:
                    yield packing
                    seen.add(packing)

    def trouble(self, tree: Digest) -> M5Error | OSError | None:
        """Return what was wrong with the store when an annotation that may tell of `tree` was to be read, if it was."""
        return next((self._troubles[one] for one in self._snapshots.get(tree, ()) if one in self._troubles), None)

    def _said_of(self, snapshot: Digest) -> list[dict[Digest, Digest]]:
        """Return what the annotations of a snapshot say. Where one could not be read it is asked again next time."""
        if snapshot in self._said:
            return self._said[snapshot]
        keys = [f"snapshots/{snapshot}/{name}" for name in self._store.names(f"snapshots/{snapshot}/")]
        troubles: list[M5Error | OSError] = []
        said = list(self._said_by(_newest_first(keys), troubles))
        if troubles:
            self._troubles[snapshot] = troubles[0]
        else:
            self._troubles.pop(snapshot, None)
            self._said[snapshot] = said
        return said

    def warns(self) -> bool:
        """Return whether it is still to be said that files are read from other packs than those looked for: once."""
        with self._placing:
            first, self._warned = not self._warned, True
        return first

    def elsewhere(self, objects: "Objects", part: Slice) -> list[Slice]:
        """Return where else the small file of `part` lies, as the annotations of the snapshots noted here say.

        What cannot be read is mute.
        """
        with self._placing:
            if self._places is None:
                self._places = self._all_places(objects)
            places = self._places
        return [one for one in places.get(part.digest, ()) if one.size_bytes == part.size_bytes and one != part]

    def _all_places(self, objects: "Objects") -> dict[Digest, list[Slice]]:
        places: dict[Digest, dict[Slice, None]] = {}
        named: dict[Digest, None] = {}
        for tree in list(self._snapshots):
            with suppress(M5Error, OSError):
                named |= dict.fromkeys(self.said(tree))
        for digest in named:
            with suppress(M5Error, OSError):
                for place in slices(objects.get_record(digest, Packing), digest):
                    places.setdefault(place.digest, {})[place] = None
        return {digest: list(found) for digest, found in places.items()}

    def recent(self, objects: "Objects") -> list[Pack]:
        """Return the packs of snapshots that something was said of lately, for who does not know what a store holds.

        Of the first `_LISTED` annotations the `_RECENT` newest are read, once. Nothing of it is sure to be there.
        """
        if self._recent is None:
            packs: dict[Digest, Pack] = {}
            # Who cannot ask sends all: nothing that others have there fails a snapshot.
            with suppress(M5Error, OSError):
                for digest in dict.fromkeys(one for said in self._newest() for one in said.values()):
                    with suppress(*UNSOUND):
                        packing = objects.get_record(digest, Packing)
                        check(packing, digest)
                        packs = {pack.object: pack for pack in packing.packs} | packs
            self._recent = [pack for pack in packs.values() if pack.size_bytes <= objects.format.pack_bytes]
        return self._recent

    def _newest(self) -> Iterator[dict[Digest, Digest]]:
        """Return what the newest annotations of all snapshots say."""
        found = itertools.islice(self._store.list("snapshots/"), _LISTED)
        return self._said_by(_newest_first(stat.key for stat in found)[:_RECENT], [])

    def _said_by(self, keys: Iterable[str], troubles: list[M5Error | OSError]) -> Iterator[dict[Digest, Digest]]:
        found = flight.each(partial(self._packings_in, troubles), keys)
        return (said for said in found if said is not None)

    def _packings_in(self, troubles: list[M5Error | OSError], key: str) -> dict[Digest, Digest] | None:
        try:
            return bindings.record(self._store, key, Annotation).packings
        except UNSOUND:
            return None
        except (M5Error, OSError) as error:
            troubles.append(error)
            return None


def _newest_first(keys: Iterable[str]) -> list[str]:
    """Return keys of annotations by when they were made. One of a day to come is of a wrong clock, or a lie."""
    latest = f"{int((time.time() + _DAY_S) * 1000):014d}"
    return sorted(keys, key=lambda key: (_stamp(key) <= latest, _stamp(key)), reverse=True)


def _stamp(key: str) -> str:
    return key.rpartition("/")[2]


def counting(objects: "Objects", said: Iterable[Mapping[Digest, Digest]], *, lenient: bool = False) -> list[Digest]:
    """Return which of the packings that the annotations of a snapshot name are needed.

    All, but for those of which something is not there where another one of the same tree is whole: what a store has
    lost is replaced by taking the snapshot again, and then nobody needs the rest of it. Raises what is wrong with the
    store, and UnknownSchema, since a newer m5ws may need what it wrote; to the `lenient` such a packing is not whole.
    """
    from m5ws.repository import trees

    named: dict[Digest, dict[Digest, None]] = {}
    for packings in said:
        for tree, packing in packings.items():
            named.setdefault(tree, {})[packing] = None
    found: dict[Digest, None] = {}
    for tree, several in named.items():
        whole = list[Digest]()
        if len(several) > 1:
            with suppress(NotFound, CorruptObject):
                entries = trees.load(objects, tree).entries
                whole = [one for one in several if is_whole(objects, tree, entries, one, lenient=lenient)]
        found |= dict.fromkeys(whole or several)
    return list(found)


def is_whole(
    objects: "Objects", tree: Digest, entries: Sequence[Entry], packing: Digest, *, lenient: bool = True
) -> bool:
    """Return whether a packing says where all files of a tree lie, and all its packs are there.

    To the `lenient`, who can use another one, what cannot be read now is not whole; else that is raised.
    """
    from m5ws.repository import presence

    try:
        record = objects.get_record(packing, Packing)
        filled(entries, record, tree, packing)
        needs = {pack.object: pack.size_bytes for pack in record.packs}
        return not presence.missing(objects, needs, lenient=True)
    except (NotFound, CorruptObject):
        return False
    except (M5Error, OSError):
        if lenient:
            return False
        raise


def needed(entries: Sequence[Entry]) -> bool:
    """Return whether there are small files among `entries`, whose places a packing must say."""
    return any(map(_is_small, entries))


def _is_small(entry: Entry) -> bool:
    return not entry.parts and entry.link is None and entry.size_bytes > 0


def check(packing: Packing, what: str) -> None:
    """Refuse a packing, called `what`, that contradicts itself. Raises CorruptObject."""
    for pack in packing.packs:
        if len(pack.files) != 32 * len(pack.sizes_bytes) or not pack.sizes_bytes:
            raise CorruptObject(f"packing {what} has {len(pack.sizes_bytes)} sizes and another number of files")
        if pack.size_bytes > OBJECT_BYTES:
            raise CorruptObject(f"packing {what} has a pack of {pack.size_bytes} bytes, which no object has")


def slices(packing: Packing, what: str) -> Iterator[Slice]:
    """Yield where each file lies. Raises CorruptObject for a packing, called `what`, that contradicts itself."""
    check(packing, what)
    for pack in packing.packs:
        offset = 0
        for name, size in zip(pack.names, pack.sizes_bytes, strict=True):
            yield Slice(object=pack.object, offset=offset, size_bytes=size, digest=name.hex())
            offset += size


def filled(entries: Sequence[Entry], packing: Packing, tree: Digest, what: str) -> tuple[Entry, ...]:
    """Return `entries` of a tree with the parts of small files, which a packing, called `what`, names.

    Raises CorruptObject if the two contradict each other, NotFound if it does not name all.
    """
    places = {place.digest: place for place in slices(packing, what)}
    whole: list[Entry] = []
    for entry in entries:
        if not _is_small(entry):
            whole.append(entry)
            continue
        place = places.get(entry.digest)
        if place is None:
            raise NotFound(f"packing {what} does not say where {entry.name} of tree {tree} lies")
        if place.size_bytes != entry.size_bytes:
            raise CorruptObject(
                f"{entry.name} has {entry.size_bytes} bytes in tree {tree}, and {place.size_bytes} in packing {what}"
            )
        whole.append(msgspec.structs.replace(entry, parts=(place,)))
    return tuple(whole)
