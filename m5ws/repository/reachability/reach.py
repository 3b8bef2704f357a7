"""All objects that a snapshot or a checkpoint needs: one walk over records, whoever asks.

Memory: one entry of 32 bytes an object, however many roots lead to it.
"""

from m5ws.records.base import Digest
from m5ws.records.checkpoint import Checkpoint, Content
from m5ws.records.outputs import ANY_OUTPUTS
from m5ws.records.snapshot import Annotation, Snapshot
from m5ws.records.tree import Packing, Slice, Tree
from m5ws.repository.objects import Objects, R
from m5ws.repository.reachability.links import named


class Reach:
    """What can be reached from the roots that were added. Safe to add to from several threads.

    Each record is read once, and raises what reading it raises: what cannot be read cannot be said to need nothing.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._walked: set[bytes] = set()
        self.digests: set[bytes] = set()

    def add(self, digest: Digest) -> None:
        """Add an object that names no other."""
        self.digests.add(bytes.fromhex(digest))

    def annotation(self, annotation: Annotation) -> None:
        """Add what an annotation names, but for the snapshot that it is about."""
        if annotation.observed is not None:
            self.add(annotation.observed)
        for packing in annotation.packings.values():
            self.packing(packing)

    def packing(self, digest: Digest) -> None:
        self._record(digest, Packing)

    def snapshot(self, digest: Digest) -> None:
        self._record(digest, Snapshot)

    def tree(self, digest: Digest) -> None:
        self._record(digest, Tree)

    def checkpoint(self, digest: Digest) -> Checkpoint | None:
        """Add a checkpoint; return its record, or None if it was added before."""
        return self._record(digest, Checkpoint)

    def outputs(self, digest: Digest) -> None:
        self._record(digest, ANY_OUTPUTS)

    def content(self, digest: Digest) -> None:
        self._record(digest, Content)

    def _record(self, digest: Digest, kind: type[R]) -> R | None:
        """Add a record with all that it names; return it unless it was added before. Marked when all of it is."""
        self.add(digest)
        if bytes.fromhex(digest) in self._walked:
            return None
        record = self._objects.get_record(digest, kind)
        for found in named(self._objects, digest, record):
            if isinstance(found, Slice):
                self.add(found.object)
            else:
                self._record(*found)
        self._walked.add(bytes.fromhex(digest))
        return record
