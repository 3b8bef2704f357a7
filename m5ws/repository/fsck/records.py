"""All records reachable from references, read and checked once, and their requirements for all objects.

References between records form a graph, from references down to objects. So the snapshots and runs affected by damage
are found by going up from it, and only if there is damage.
"""

import threading
from collections.abc import Iterable, Iterator
from functools import cached_property

from m5ws.errors import CorruptObject, NotFound, UnknownSchema
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.checkpoint import Checkpoint
from m5ws.records.outputs import OutputFiles
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects
from m5ws.repository.reachability.links import Named, iter_links

_Claim = tuple[Digest, type[Record]]


class Records:
    """Results of the walk. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._claimed: set[_Claim] = set()
        self._roots: set[str] = set()
        self._names: dict[str, set[Digest]] = {}
        self.read: set[Digest] = set()
        self.corrupt: dict[Digest, str] = {}
        self.unreadable: dict[Digest, str] = {}
        self.least: dict[Digest, int] = {}
        self.exact: dict[Digest, int] = {}
        self.sliced: set[Digest] = set()
        self._with_slices: dict[Digest, type[Record]] = {}
        self.made: dict[tuple[str, int], dict[Digest, Checkpoint]] = {}
        self.checkpoints: dict[Digest, Checkpoint | OutputFiles] = {}

    def need(self, root: str, digest: Digest) -> None:
        """Add an object without references to others, named by the reference `root`."""
        with self._lock:
            self._roots.add(root)
            self._names.setdefault(root, set()).add(digest)

    def walk(self, root: str, digest: Digest, kind: type[Record]) -> None:
        """Read the record of a reference, and all records reachable from it. Missing objects are skipped."""
        self.need(root, digest)
        waiting: list[_Claim] = [(digest, kind)]
        while waiting:
            claim = waiting.pop()
            with self._lock:
                new = claim not in self._claimed
                self._claimed.add(claim)
            if new:
                waiting += self._visit(*claim)

    @property
    def needed(self) -> set[Digest]:
        """All objects reachable from a reference."""
        return set().union(*self._names.values())

    def harms(self, digest: Digest) -> tuple[str, ...]:
        """Return the snapshots and runs that lead to an object, sorted. Call after all walks."""
        reached, waiting = set[str](), [digest]
        while waiting:
            fresh = self._namers.get(waiting.pop(), set()) - reached
            reached |= fresh
            waiting += fresh
        return tuple(sorted(reached & self._roots))

    @cached_property
    def _namers(self) -> dict[Digest, set[str]]:
        namers: dict[Digest, set[str]] = {}
        for namer, digests in self._names.items():
            for digest in digests:
                namers.setdefault(digest, set()).add(namer)
        return namers

    def _visit(self, digest: Digest, kind: type[Record]) -> list[_Claim]:
        """Read one record, and return the records that it names."""
        try:
            data = self._objects.get(digest)
        except NotFound:
            return []
        except CorruptObject:
            self.corrupt[digest] = NOT_ITS_BYTES
            return []
        except PermissionError:
            raise
        except OSError as error:
            self.corrupt[digest] = unread(error)
            return []
        self.read.add(digest)
        try:
            record = codec.decode(data, kind, f"object {digest}")
            claims = self._remember(digest, kind, iter_links(self._objects, digest, record))
        except (CorruptObject, UnknownSchema) as error:
            self.unreadable[digest] = str(error)
            return []
        if isinstance(record, Checkpoint):
            with self._lock:
                self.made.setdefault((record.run, record.attempt), {})[digest] = record
                self.checkpoints[digest] = record
        elif isinstance(record, OutputFiles):
            self.checkpoints[digest] = record
        return claims

    def slices(self) -> Iterator[tuple[Digest, tuple[Slice, ...]]]:
        """Yield each object of several slices with the slices that one record names, in order of offsets.

        Records are read again, one at a time. Nothing is kept for each slice: a large checkpoint has millions.
        """
        for digest, kind in self._with_slices.items():
            by_object: dict[Digest, set[Slice]] = {}
            try:
                record = self._objects.get_record(digest, kind)
            except NotFound:
                continue  # Deleted by gc since the walk.
            for target in iter_links(self._objects, digest, record):
                if isinstance(target, Slice) and target.digest != target.object:
                    by_object.setdefault(target.object, set()).add(target)
            for object_, parts in by_object.items():
                yield object_, tuple(sorted(parts, key=lambda part: (part.offset, part.size_bytes, part.digest)))

    def _remember(self, digest: Digest, kind: type[Record], targets: Iterable[Named]) -> list[_Claim]:
        """Keep the objects that a record names, if all its links are valid, and return the records among them."""
        claims: list[_Claim] = []
        least, exact, sliced, names = dict[Digest, int](), dict[Digest, int](), set[Digest](), set[Digest]()
        for target in targets:
            if not isinstance(target, Slice):
                names.add(target[0])
                claims.append(target)
                continue
            least[target.object] = max(least.get(target.object, 0), target.offset + target.size_bytes)
            if target.digest == target.object:
                exact[target.object] = target.size_bytes
            else:
                sliced.add(target.object)
        with self._lock:
            self._names.setdefault(digest, set()).update(names, least)
            for object_, size_bytes in least.items():
                self.least[object_] = max(self.least.get(object_, 0), size_bytes)
            self.exact |= exact
            self.sliced |= sliced
            if sliced:
                self._with_slices[digest] = kind
        return claims


NOT_ITS_BYTES = "checksum mismatch: its content does not match its name"


def unread(error: OSError) -> str:
    """Return the description of a read error."""
    return f"it cannot be read: {error.strerror or error}"
