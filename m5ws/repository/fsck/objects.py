"""All objects of a store, and the damage among them.

An object is read completely and checked against its name and the slices that records name. It is not read if the
store's server keeps a checksum (`ChecksumListing`) and its size matches the records. If reading shows damage in an
object with a server checksum, the server is not trusted, and everything is read.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from m5ws.errors import CorruptObject, NotFound
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.tree import Slice
from m5ws.repository.concurrency import Job, bounded_map
from m5ws.repository.fsck.damage import ChecksumOnly, Trouble
from m5ws.repository.fsck.records import NOT_ITS_BYTES, Records, unread
from m5ws.repository.objects import is_digest, key
from m5ws.repository.repository import Repository
from m5ws.store.interface import ChecksumListing, ChecksummedStat

_OBJECTS = "objects/"
_Checked = tuple[Digest, str | None]
"""An object, and a description of its damage."""


class Holdings:
    """The listed objects, the read objects, and the damage in `bad` by digest.

    `foreign` lists keys that are no object keys.
    """

    def __init__(self, repo: Repository, records: Records, *, read_data: bool) -> None:
        self._repo = repo
        self._records = records
        self._vouching = repo.store if isinstance(repo.store, ChecksumListing) and not read_data else None
        self._checksums: dict[Digest, str] = {}
        self._trusted: set[Digest] = set()
        self.sizes: dict[Digest, int] = {}
        self.read: set[Digest] = set()
        self.bad: dict[Digest, Trouble] = {}
        self.foreign: list[str] = []
        self.distrusted = False

    def check(self, progress: Progress) -> None:
        """List all objects, and check each. Call after walking the records."""
        self._list()
        self._judge_sizes()
        self._take_records()
        least, done = self._records.least, self.read | self.bad.keys()
        self._trusted = {each for each in self._checksums if each not in done and least.get(each) == self.sizes[each]}
        self._read([digest for digest in self.sizes if digest not in self._trusted], progress)
        if self.distrusted:
            self._trusted, unread_digests = set(), self._trusted
            self._read(unread_digests, progress)

    def vouched(self) -> tuple[ChecksumOnly, ...]:
        """Return the unread objects that count as undamaged, grouped by their server checksum."""
        counts: dict[str, tuple[int, int]] = {}
        for digest in self._trusted:
            objects, size_bytes = counts.get(self._checksums[digest], (0, 0))
            counts[self._checksums[digest]] = objects + 1, size_bytes + self.sizes[digest]
        return tuple(
            ChecksumOnly(checksum=checksum, objects=objects, size_bytes=size_bytes)
            for checksum, (objects, size_bytes) in sorted(counts.items())
        )

    def _list(self) -> None:
        store = self._repo.store
        for stat in self._vouching.list_with_checksums(_OBJECTS) if self._vouching else store.list(_OBJECTS):
            digest = stat.key.rpartition("/")[2]
            if not is_digest(digest) or stat.key != key(digest):
                self.foreign.append(stat.key)
                continue
            self.sizes[digest] = stat.size_bytes
            if isinstance(stat, ChecksummedStat) and stat.checksum is not None:
                self._checksums[digest] = stat.checksum

    def _judge_sizes(self) -> None:
        for digest, least in self._records.least.items():
            size, exact = self.sizes.get(digest), self._records.exact.get(digest)
            if size is not None and size < least:
                self.bad[digest] = "truncated", f"it has {size} bytes instead of at least {least}"
            elif size is not None and exact is not None and size != exact:
                self.bad[digest] = "corrupt", f"it has {size} bytes, but a record names {exact}"

    def _take_records(self) -> None:
        """Count records as read. Records with named slices, such as packs, are read again."""
        self.read |= self._records.read & self.sizes.keys() - self._records.sliced
        for digest, trouble in self._records.corrupt.items():
            if digest in self.sizes:
                self.read.add(digest)
                self._found(digest, trouble)

    def _read(self, digests: Iterable[Digest], progress: Progress) -> None:
        wanted = {digest for digest in digests if digest not in self.bad and digest not in self.read}
        for position, (digest, trouble) in enumerate(bounded_map(self._jobs(wanted))):
            progress("checking objects", min(position, len(wanted)), len(wanted))
            if trouble is not None:
                self._found(digest, trouble)
        progress("checking objects", len(wanted), len(wanted))

    def _jobs(self, wanted: set[Digest]) -> Iterator[Job[_Checked]]:
        """Yield the reading of each object. An object is read again for records that name other slices of it."""
        sliced = wanted & self._records.sliced
        for digest in sorted(wanted - sliced):
            yield self.sizes[digest], partial(self._check, digest, ())
        done: set[bytes] = set()
        for digest, parts in self._records.slices() if sliced else ():
            mark = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
            if digest in sliced and mark not in done and digest in self.sizes:
                done.add(mark)
                yield self.sizes[digest], partial(self._check, digest, parts)

    def _found(self, digest: Digest, trouble: str) -> None:
        self.bad[digest] = "corrupt", trouble
        self.distrusted = self.distrusted or digest in self._checksums

    def _check(self, digest: Digest, parts: Sequence[Slice]) -> _Checked:
        return digest, self._trouble(digest, parts)

    def _trouble(self, digest: Digest, parts: Sequence[Slice]) -> str | None:
        """Read an object and its slices. Return a description of its damage, or None."""
        objects = self._repo.objects
        try:
            data = memoryview(objects.get(digest))
        except NotFound:
            self.sizes.pop(digest, None)  # Deleted since the listing: missing if anything needs the object.
            return None
        except CorruptObject:
            self.read.add(digest)
            return NOT_ITS_BYTES
        except PermissionError:
            raise
        except OSError as error:
            return unread(error)
        self.read.add(digest)
        for part in parts:
            if objects.digest(data[part.offset : part.offset + part.size_bytes]) != part.digest:
                return f"bytes {part.offset}+{part.size_bytes} do not match their digest in a record"
        return None
