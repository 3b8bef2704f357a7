"""Objects, named by the digest of exactly their bytes.

All data is checked against its name before it is used (promise 5). Damage of a disk, cache or transfer raises an error
here and nowhere else. Before that, a caching store reads the object again from its origin, and bytes of a copy on this
machine (`Objects.near`) are replaced by bytes of the store.

Data in memory is stored in slices of objects. Large buffers are split on a fixed grid of `Format.chunk_bytes`, one
object per piece. Small buffers are joined into packs in the given order. The object of a byte depends only on sizes and
order.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import blake3

from m5ws.errors import CorruptObject, M5Error, NotFound, ObjectExists
from m5ws.records import codec
from m5ws.records.base import Digest, Record
from m5ws.records.store import Format
from m5ws.records.tree import Slice
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.store.cache.cache import CachedStore
from m5ws.store.interface import Buffer, ObjectStore

R = TypeVar("R", bound=Record)
_READS = 3
_HINT = "Run `m5ws fsck` in a workspace of the store {}. It lists all damage and its effects."
_ASKED_BYTES = 64 * 2**10
"""Smaller objects are uploaded without an existence check, which would take as long."""
_SEEN_MOST = 2**17
"""Limit of remembered digests, so that a process that saves for months does not remember every chunk."""
_DIGEST = re.compile("[0-9a-f]{64}")
_DENSE = 4
"""An object is read whole if at least this fraction of it (1/4) is needed."""

Reading = tuple[Slice, memoryview]
"""A slice, and memory of the same length to read it into."""


def key(digest: Digest) -> str:
    """Return the store key of an object."""
    return f"objects/{digest[:2]}/{digest}"


class Objects:
    """The content-addressed part of a store. `done_plans` returns the finished gc plans, and is called once."""

    def __init__(
        self, store: ObjectStore, form: Format, done_plans: Callable[[], frozenset[str]] = frozenset[str]
    ) -> None:
        self.store = store
        self.format = form
        self._seen: set[Digest] = set()
        self._done_plans = done_plans
        self._began: frozenset[str] | None = None
        self._beginning = threading.Lock()
        self.near: ObjectStore | None = None
        """A store on this machine with copies of some objects, which are read first."""
        self.damaged_near: set[str] = set()
        """Keys of damaged copies in `near`, which were read from the store."""

    def begin(self) -> frozenset[str]:
        """Return the gc plans that were done before the first existence check of this process.

        Objects deleted by those plans were never seen here. Any other plan may delete objects seen later
        (publishing.py).
        """
        if self._began is None:
            with self._beginning:
                if self._began is None:
                    self._began = self._done_plans()
        return self._began

    def digest(self, data: Buffer) -> Digest:
        """Return the store's hash of `data`, BLAKE3-256 in lower-case hex."""
        return blake3.blake3(data).hexdigest()

    def hasher(self) -> blake3.blake3:
        """Return a new hasher of the store's hash function, for data in pieces."""
        return blake3.blake3()

    def put(self, data: Buffer) -> Digest:
        """Make `data` durable and return its digest. Existing bytes are not written again.

        Raises CorruptObject if the existing object has another length, which means damage after it was written.
        """
        digest = self.digest(data)
        self.place(digest, data)
        return digest

    def place(self, digest: Digest, data: Buffer) -> bool:
        """As `put`, for data with a known digest. Return True if the object is new. Raises CorruptObject."""
        self.begin()
        try:
            self.store.create(key(digest), data)
        except ObjectExists as existing:
            size_bytes = memoryview(data).nbytes
            if existing.size_bytes is None:
                self.has(digest, size_bytes)
            else:
                check_length(self.store, digest, existing.size_bytes, size_bytes)
            return False
        return True

    def put_if_absent(self, data: Buffer) -> Digest:
        """As `put`, for bytes that probably exist: one existence check, and an upload only if they are missing.

        The result is remembered. If gc deletes the object later, publishing detects the loss; see `forget`.
        """
        digest = self.digest(data)
        if digest not in self._seen:
            size_bytes = memoryview(data).nbytes
            if size_bytes < _ASKED_BYTES or not self.has(digest, size_bytes):
                self.place(digest, data)
            if len(self._seen) >= _SEEN_MOST:
                self._seen.clear()
            self._seen.add(digest)
        return digest

    def forget(self) -> None:
        """Forget which objects exist, because some of them were deleted."""
        self._seen.clear()

    def has(self, digest: Digest, size_bytes: int | None = None) -> bool:
        """Return True if an object exists; its length is checked if given. Raises CorruptObject."""
        self.begin()
        existing = self.store.stat(key(digest))
        if existing is None:
            return False
        if size_bytes is not None:
            check_length(self.store, digest, existing.size_bytes, size_bytes)
        return True

    def get(self, digest: Digest) -> bytes:
        """Return an object's bytes, verified; damaged bytes are read again. Raises NotFound, CorruptObject."""
        for data in self._readings(key(digest)):
            if self.digest(data) == digest:
                return data
        raise damaged(self.store, f"object {digest} is damaged: its content does not match its name")

    def read(self, part: Slice) -> bytes:
        """Return a slice's bytes, verified by the slice's own digest, as `get` does. Raises NotFound, CorruptObject."""
        whole = part.object == part.digest
        where = (key(part.object),) if whole else (key(part.object), part.offset, part.size_bytes)
        for data in self._readings(*where):
            if self._is(data, part):
                return data
        raise _not_as_written(self.store, part)

    def pieces(self, pack: Digest, parts: Sequence[Slice]) -> list[memoryview]:
        """Return slices of one object, which is read once.

        Each slice is verified by its own digest. Raises as `read`.
        """
        wrong: Slice | None = None
        for data in self._readings(key(pack)):
            pieces, wrong = self._cut(data, parts)
            if wrong is None:
                return pieces
        assert wrong is not None
        raise _not_as_written(self.store, wrong)

    def _readings(self, *where: Any) -> Iterator[bytes]:
        """Yield readings of an object: first a copy on this machine, if there is one, then the store's."""
        if (near := self._read_near(*where)) is not None:
            yield near
            # A reader takes another reading only after a checksum mismatch.
            self.damaged_near.add(where[0])
        try:
            data = self.store.get(*where)
        except NotFound as error:
            raise NotFound(str(error), hint=_HINT.format(self.store.url)) from error
        yield data
        for _ in range(_READS - 1):
            yield self.store.refetch(*where) if isinstance(self.store, CachedStore) else self.store.get(*where)

    def _read_near(self, *where: Any) -> bytes | None:
        """Return a reading of a copy in `near`; None if there is none, or if the disk cannot read it."""
        if self.near is not None:
            with suppress(M5Error, OSError):
                return self.near.get(*where)
        return None

    def _cut(self, data: bytes, parts: Sequence[Slice]) -> tuple[list[memoryview], Slice | None]:
        """Return slices of `data`, and the first slice with a checksum mismatch."""
        view = memoryview(data)
        pieces = [view[part.offset : part.offset + part.size_bytes] for part in parts]
        wrong = (part for part, piece in zip(parts, pieces, strict=True) if not self._is(piece, part))
        return pieces, next(wrong, None)

    def _is(self, data: bytes | memoryview, part: Slice) -> bool:
        return len(data) == part.size_bytes and self.digest(data) == part.digest

    def put_record(self, record: Record) -> Digest:
        """Make a record durable and return the digest of its stored bytes."""
        return self.put(codec.encode(record))

    def get_record(self, digest: Digest, kind: type[R]) -> R:
        """Return the record stored as `digest`. Raises NotFound, CorruptObject, UnknownSchema."""
        return codec.decode(self.get(digest), kind, f"object {digest}")


def check_length(store: ObjectStore, digest: Digest, stored_bytes: int, size_bytes: int) -> None:
    """Raise CorruptObject if an object of a store has another length than its data."""
    if stored_bytes != size_bytes:
        raise damaged(store, f"object {digest} has {stored_bytes} bytes instead of {size_bytes}")


def damaged(store: ObjectStore, problem: str) -> CorruptObject:
    """Return the error for a damaged object, which names the store: a copy reads two stores."""
    return CorruptObject(f"{problem} (in the store {store.url})", hint=_HINT.format(store.url))


def _not_as_written(store: ObjectStore, part: Slice) -> CorruptObject:
    where = f"bytes {part.offset}+{part.size_bytes} of object {part.object}"
    return damaged(store, f"{where} do not match their digest in the record")


def is_digest(text: str) -> bool:
    """Return True if `text` has the form of a digest."""
    return _DIGEST.fullmatch(text) is not None


def write_parts(objects: Objects, items: Iterable[tuple[str, Buffer]]) -> dict[str, tuple[Slice, ...]]:
    """Make buffers durable, and return the slices of each by name. An empty buffer has no slices.

    Existing objects are not uploaded. The buffers may be reused afterwards.
    """
    slices: dict[str, list[Slice]] = {}
    for written in bounded_map(_writing(objects, items, slices)):
        for name, part in written:
            slices[name].append(part)
    return {name: tuple(parts) for name, parts in slices.items()}


def read_parts(objects: Objects, readings: Sequence[Reading]) -> None:
    """Fill memory with verified slices. Raises NotFound, CorruptObject.

    Several slices of one object are read together.
    """
    by_object: dict[str, list[Reading]] = {}
    for reading in readings:
        by_object.setdefault(reading[0].object, []).append(reading)
    for _ in bounded_map(_reading(objects, by_object.values())):
        pass


def into(parts: Sequence[Slice], memory: memoryview, what: str) -> list[Reading]:
    """Return the readings that fill memory with the concatenated `parts`.

    Raises CorruptObject for another total length.
    """
    if sum(part.size_bytes for part in parts) != memory.nbytes:
        raise CorruptObject(f"the stored parts of {what} do not have the length that its shape and type need")
    readings, position = [], 0
    for part in parts:
        readings.append((part, memory[position : position + part.size_bytes]))
        position += part.size_bytes
    return readings


def _writing(
    objects: Objects, items: Iterable[tuple[str, Buffer]], slices: dict[str, list[Slice]]
) -> Iterator[Job[list[tuple[str, Slice]]]]:
    """Yield jobs that store chunks of large buffers and packs of small buffers. Each name is added to `slices`."""
    form = objects.format
    pack: list[tuple[str, memoryview]] = []
    size = 0
    for name, buffer in items:
        slices[name] = []
        view = memoryview(buffer).cast("B")
        if view.nbytes >= form.small_bytes:
            for start in range(0, view.nbytes, form.chunk_bytes):
                piece = view[start : start + form.chunk_bytes]
                yield piece.nbytes, partial(_put_chunk, objects, name, piece)
        elif view.nbytes:
            if size + view.nbytes > form.pack_bytes:
                yield 2 * size, partial(_put_pack, objects, pack)
                pack, size = [], 0
            pack.append((name, view))
            size += view.nbytes
    if pack:
        yield 2 * size, partial(_put_pack, objects, pack)


def _put_chunk(objects: Objects, name: str, piece: memoryview) -> list[tuple[str, Slice]]:
    digest = objects.put_if_absent(piece)
    return [(name, Slice(object=digest, offset=0, size_bytes=piece.nbytes, digest=digest))]


def _put_pack(objects: Objects, pack: list[tuple[str, memoryview]]) -> list[tuple[str, Slice]]:
    joined = b"".join(view for _, view in pack)
    digest = objects.put_if_absent(joined)
    parts, offset = [], 0
    for name, view in pack:
        part = Slice(object=digest, offset=offset, size_bytes=view.nbytes, digest=objects.digest(view))
        parts.append((name, part))
        offset += view.nbytes
    return parts


def _reading(objects: Objects, groups: Iterable[list[Reading]]) -> Iterator[Job[None]]:
    for readings in groups:
        extent = max(part.offset + part.size_bytes for part, _ in readings)
        if len(readings) > 1 and extent <= _DENSE * sum(part.size_bytes for part, _ in readings):
            yield extent, partial(_read_whole, objects, readings)
        else:
            for part, target in readings:
                yield part.size_bytes, partial(_read_one, objects, part, target)


def _read_whole(objects: Objects, readings: list[Reading]) -> None:
    pieces = objects.pieces(readings[0][0].object, [part for part, _ in readings])
    for (_, target), piece in zip(readings, pieces, strict=True):
        target[:] = piece


def _read_one(objects: Objects, part: Slice, target: memoryview) -> None:
    target[:] = objects.read(part)
