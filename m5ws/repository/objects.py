"""Objects named by the digest of exactly their bytes.

Everything that is read is checked against its name before anybody sees it (promise 5), so a damaged
disk, cache or transfer is an error here and nowhere else.
"""

import threading
from typing import TypeVar

import blake3

from m5ws import codec
from m5ws.errors import CorruptObject, ObjectExists
from m5ws.ports import Buffer, ObjectStore
from m5ws.records import Digest, Format, Record, Slice
from m5ws.repository import plans

R = TypeVar("R", bound=Record)
_READS = 3


def key(digest: Digest) -> str:
    """Return the store key of an object."""
    return f"objects/{digest[:2]}/{digest}"


class Objects:
    """The content-addressed part of a store."""

    def __init__(self, store: ObjectStore, form: Format) -> None:
        self.store = store
        self.format = form
        self._began: frozenset[str] | None = None
        self._beginning = threading.Lock()

    def begin(self) -> frozenset[str]:
        """Return the gc plans that were done before this process first asked whether an object is there.

        What those deleted, it has never seen; what is seen from now on, any other plan may delete (publishing.py).
        """
        if self._began is None:
            with self._beginning:
                if self._began is None:
                    self._began = plans.look(self.store).done
        return self._began

    def digest(self, data: Buffer) -> Digest:
        """Return the store's hash of `data`, in lower-case hex."""
        if self.format.hash == "sha256":
            import hashlib

            return hashlib.sha256(data).hexdigest()
        return blake3.blake3(data).hexdigest()

    def put(self, data: Buffer) -> Digest:
        """Make `data` durable and return its digest. Bytes that are there already are not written again.

        Raises CorruptObject if the object that is there has another length: it was damaged after it was written.
        """
        digest = self.digest(data)
        self.begin()
        try:
            self.store.create(key(digest), data)
        except ObjectExists:
            self.has(digest, memoryview(data).nbytes)
        return digest

    def has(self, digest: Digest, size_bytes: int | None = None) -> bool:
        """Return whether an object is there; its length is checked if given. Raises CorruptObject."""
        self.begin()
        found = self.store.stat(key(digest))
        if found is None:
            return False
        if size_bytes is not None and found.size_bytes != size_bytes:
            raise CorruptObject(f"object {digest} has {found.size_bytes} bytes instead of {size_bytes}")
        return True

    def get(self, digest: Digest) -> bytes:
        """Return an object's bytes, verified; what is damaged is read again. Raises NotFound, CorruptObject."""
        for _ in range(_READS):
            data = self.store.get(key(digest))
            if self.digest(data) == digest:
                return data
        raise CorruptObject(f"object {digest} does not have the bytes it was written with")

    def read(self, part: Slice) -> bytes:
        """Return a slice's bytes, verified by its own digest, as `get` does. Raises NotFound, CorruptObject."""
        for _ in range(_READS):
            data = self.store.get(key(part.object), part.offset, part.size_bytes)
            if self.digest(data) == part.digest:
                return data
        raise CorruptObject(f"bytes {part.offset}+{part.size_bytes} of object {part.object} are not what was written")

    def put_record(self, record: Record) -> Digest:
        """Make a record durable and return the digest of its stored bytes."""
        return self.put(codec.encode(record))

    def get_record(self, digest: Digest, kind: type[R]) -> R:
        """Return the record stored as `digest`. Raises NotFound, CorruptObject, UnknownSchema."""
        return codec.decode(self.get(digest), kind, f"object {digest}")


def is_digest(text: str) -> bool:
    """Return whether `text` has the form of a digest."""
    return len(text) == 64 and all(character in "0123456789abcdef" for character in text)
