"""All records reachable from references, read and checked once, and their requirements for all objects.

References between records form a graph, from references down to objects. So the snapshots and runs affected by damage
are found by going up from it, and only if there is damage.
"""

import threading
from collections.abc import Iterable
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
        self.slices: dict[Digest, set[Slice]] = {}
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
            links = list(iter_links(self._objects, digest, record))
        except (CorruptObject, UnknownSchema) as error:
            self.unreadable[digest] = str(error)
            return []
        if isinstance(record, Checkpoint):
            with self._lock:
                self.made.setdefault((record.run, record.attempt), {})[digest] = record
                self.checkpoints[digest] = record
        elif isinstance(record, OutputFiles):
            self.checkpoints[digest] = record
        return self._remember(digest, links)

    def _remember(self, digest: Digest, targets: Iterable[Named]) -> list[_Claim]:
        claims: list[_Claim] = []
        with self._lock:
            names = self._names.setdefault(digest, set())
            for target in targets:
                if isinstance(target, Slice):
                    names.add(target.object)
                    self._size(target)
                else:
                    names.add(target[0])
                    claims.append(target)
        return claims

    def _size(self, part: Slice) -> None:
        self.least[part.object] = max(self.least.get(part.object, 0), part.offset + part.size_bytes)
        if part.digest == part.object:
            self.exact[part.object] = part.size_bytes
        else:
            self.slices.setdefault(part.object, set()).add(part)


NOT_ITS_BYTES = "checksum mismatch: its content does not match its name"


def unread(error: OSError) -> str:
    """Return the description of a read error."""
    return f"it cannot be read: {error.strerror or error}"
