"""Every record that a reference leads to, read once and checked, and what the records say of all objects.

What names what is kept as a graph, from references down to objects: so whom damage harms is found by going up from it,
and only if there is any.
"""

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property

from m5ws.errors import CorruptObject, NotFound, UnknownSchema
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.outputs import OutputFiles
from m5ws.records.snapshot import Snapshot
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects
from m5ws.repository.reachability.links import Named, named

_Claim = tuple[Digest, type[Record]]


class Records:
    """What was found on the way down. Safe to be added to by many threads."""

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
        self.trees: dict[Digest, tuple[Digest, ...]] = {}
        self.placed: dict[tuple[Digest, tuple[Digest, ...]], set[Digest]] = {}
        self.made: dict[tuple[str, int], dict[Digest, Checkpoint]] = {}
        self.checkpoints: dict[Digest, Checkpoint | OutputFiles] = {}

    def need(self, root: str, digest: Digest) -> None:
        """Note that a reference, called `root`, names an object that names no other."""
        with self._lock:
            self._roots.add(root)
            self._names.setdefault(root, set()).add(digest)

    def walk(self, root: str, digest: Digest, kind: type[Record]) -> None:
        """Read the record that a reference names, and all records that it leads to. What is absent is passed over."""
        self.need(root, digest)
        waiting: list[_Claim] = [(digest, kind)]
        while waiting:
            claim = waiting.pop()
            with self._lock:
                new = claim not in self._claimed
                self._claimed.add(claim)
            if new:
                waiting += self._visit(*claim)

    def lead(self, digest: Digest, other: Digest) -> None:
        """Note that whoever needs an object needs another one too, which it does not name itself."""
        with self._lock:
            self._names.setdefault(digest, set()).add(other)

    def place(self, holder: Digest, tree: Digest, packings: Sequence[Digest]) -> None:
        """Note that a snapshot or content has a tree, and which packings are said to tell where its small files lie."""
        with self._lock:
            self.placed.setdefault((tree, tuple(dict.fromkeys(packings))), set()).add(holder)

    @property
    def needed(self) -> set[Digest]:
        """All objects that a reference leads to."""
        return set().union(*self._names.values())

    def harms(self, digest: Digest) -> tuple[str, ...]:
        """Return the snapshots and runs that lead to an object, sorted. To be asked when all are walked."""
        found, waiting = set[str](), [digest]
        while waiting:
            fresh = self._namers.get(waiting.pop(), set()) - found
            found |= fresh
            waiting += fresh
        return tuple(sorted(found & self._roots))

    @cached_property
    def _namers(self) -> dict[Digest, set[str]]:
        found: dict[Digest, set[str]] = {}
        for namer, digests in self._names.items():
            for digest in digests:
                found.setdefault(digest, set()).add(namer)
        return found

    def _visit(self, digest: Digest, kind: type[Record]) -> list[_Claim]:
        """Read one record; return the records that it names."""
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
            found = list(named(self._objects, digest, record))
        except (CorruptObject, UnknownSchema) as error:
            self.unreadable[digest] = str(error)
            return []
        if isinstance(record, Checkpoint):
            with self._lock:
                self.made.setdefault((record.run, record.attempt), {})[digest] = record
                self.checkpoints[digest] = record
        elif isinstance(record, OutputFiles):
            self.checkpoints[digest] = record
        elif isinstance(record, Snapshot):
            self.trees[digest] = tuple(dict.fromkeys(record.trees.values()))
        elif isinstance(record, Content) and record.tree is not None:
            self.place(digest, record.tree, [record.packing] if record.packing is not None else [])
        return self._remember(digest, found)

    def _remember(self, digest: Digest, found: Iterable[Named]) -> list[_Claim]:
        claims: list[_Claim] = []
        with self._lock:
            names = self._names.setdefault(digest, set())
            for one in found:
                if isinstance(one, Slice):
                    names.add(one.object)
                    self._size(one)
                else:
                    names.add(one[0])
                    claims.append(one)
        return claims

    def _size(self, part: Slice) -> None:
        self.least[part.object] = max(self.least.get(part.object, 0), part.offset + part.size_bytes)
        if part.digest == part.object:
            self.exact[part.object] = part.size_bytes
        else:
            self.slices.setdefault(part.object, set()).add(part)


NOT_ITS_BYTES = "its bytes are not those it is named for"


def unread(error: OSError) -> str:
    """Return what is wrong with what a disk cannot read."""
    return f"it cannot be read: {error.strerror or error}"
