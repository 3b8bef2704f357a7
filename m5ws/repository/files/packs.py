"""Small files of a tree, joined into packs in the order of their paths, each content once.

The digests and sizes of the files alone decide where a pack ends. So a tree with its packs is a pure function of its
files, and machines that know nothing of each other make the same packs (docs/design/0002).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records.base import OBJECT_BYTES, Digest
from m5ws.records.tree import Slice, Tree
from m5ws.repository.files.validation import is_small
from m5ws.repository.objects import Objects

T = TypeVar("T")
_LEAST = 4
"""A pack below this fraction of `Format.pack_bytes` (1/4) does not end by content."""
_END = 8
"""A larger pack grows by another eighth of `Format.pack_bytes` on average, until the content of a file ends it."""


class PackGroups(Generic[T]):
    """Groups small files, added in the order of their paths, into packs."""

    def __init__(self, pack_bytes: int) -> None:
        self._limit = pack_bytes
        self._seen: set[Digest] = set()
        self._files: list[T] = []
        self._bytes = 0

    def add(self, file: T, digest: Digest, size_bytes: int) -> Iterator[list[T]]:
        """Add a file, unless its content is in a pack already. Yield the packs that it ends."""
        if digest in self._seen:
            return
        self._seen.add(digest)
        if self._bytes + size_bytes > self._limit:
            yield from self.end()
        self._files.append(file)
        self._bytes += size_bytes
        if self._bytes >= self._limit // _LEAST and _ends_pack(digest, size_bytes, self._limit // _END):
            yield from self.end()

    def end(self) -> Iterator[list[T]]:
        """Yield the last pack, if there is one."""
        if self._files:
            yield self._files
            self._files, self._bytes = [], 0


def _ends_pack(digest: Digest, size_bytes: int, aim_bytes: int) -> bool:
    """Return True if a pack ends after this file: decided by its content alone, once in `aim_bytes` on average.

    The probability is never 1; otherwise two ways of splitting the same large files would never converge.
    """
    return int(digest[:8], 16) * aim_bytes < min(size_bytes, aim_bytes // 2) << 32


def locate(objects: Objects, tree: Tree, what: str) -> Tree:
    """Return a stored tree with the parts of its small files. Raises CorruptObject if its packs contradict it."""
    sizes: dict[Digest, int] = {}
    for entry in tree.entries:
        if is_small(objects, entry) and sizes.setdefault(entry.digest, entry.size_bytes) != entry.size_bytes:
            raise CorruptObject(f"tree {what} has files of one digest and several sizes")
    waiting, places = iter(sizes.items()), dict[Digest, Slice]()
    for pack in tree.packs:
        offset = 0
        for digest, size_bytes in islice(waiting, pack.files):
            places[digest] = Slice(object=pack.object, offset=offset, size_bytes=size_bytes, digest=digest)
            offset += size_bytes
        if offset > OBJECT_BYTES:
            raise CorruptObject(f"tree {what} has a pack of {offset} bytes, more than an object can have")
    if sum(pack.files for pack in tree.packs) != len(sizes):
        raise CorruptObject(f"the packs of tree {what} do not have as many files as the tree")
    entries = tuple(
        msgspec.structs.replace(entry, parts=(places[entry.digest],)) if is_small(objects, entry) else entry
        for entry in tree.entries
    )
    return Tree(entries=entries, packs=tree.packs)
