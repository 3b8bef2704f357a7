"""All objects that a snapshot or a checkpoint needs, by one walk over records.

Memory: one entry of 32 bytes per object, however many roots lead to it.
"""

from m5ws.records.base import Digest
from m5ws.records.snapshot import Annotation
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects, R
from m5ws.repository.reachability.links import iter_links


class ReachableObjects:
    """The objects reachable from the added roots. Thread-safe.

    Each record is read once. An unreadable record raises its error, because its needs are unknown.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._walked: set[bytes] = set()
        self.digests: set[bytes] = set()

    def add(self, digest: Digest) -> None:
        """Add an object without links."""
        self.digests.add(bytes.fromhex(digest))

    def annotation(self, annotation: Annotation) -> None:
        """Add the objects that an annotation names, except its snapshot."""
        if annotation.observed is not None:
            self.add(annotation.observed)

    def record(self, digest: Digest, kind: type[R]) -> R | None:
        """Add a record and all objects it names.

        Return the record, or None if it was added before. Marked only when complete.
        """
        self.add(digest)
        if bytes.fromhex(digest) in self._walked:
            return None
        record = self._objects.get_record(digest, kind)
        for target in iter_links(self._objects, digest, record):
            if isinstance(target, Slice):
                self.add(target.object)
            else:
                self.record(*target)
        self._walked.add(bytes.fromhex(digest))
        return record
