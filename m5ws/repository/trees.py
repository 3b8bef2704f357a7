"""Files on disk to a tree, and a tree to files.

A tree is a pure function of paths, modes and contents: files of at least `Format.small_bytes` are cut into
chunks, smaller ones joined in path order into packs of 3/4 MiB on the average. A pack ends where a file's digest says
so, once it has its least size, or before it would pass `Format.pack_bytes`; so a changed file rewrites its own pack
and, at most, those up to the next end that both ways of cutting share (docs/format.md).
"""

import operator
import os
import time
from collections.abc import Sequence

import msgspec

from m5ws import codec
from m5ws.ports import Progress, SourceFile
from m5ws.records import Digest, Entry, Tree
from m5ws.repository import presence
from m5ws.repository.capture import TreeWriter
from m5ws.repository.entries import check, check_paths
from m5ws.repository.index import Index, KnownTree, settled, stamp
from m5ws.repository.objects import Objects

_STAMPED = operator.attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that is durable (or would be, on a dry run): its digest, its size, and the bytes that were new."""

    digest: Digest
    files: int
    size_bytes: int
    new_bytes: int
    unchanged: bool = False


def write_tree(
    objects: Objects,
    files: Sequence[SourceFile],
    index: Index | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> Written:
    """Capture `files` and make their tree durable. Raises FileChanged if one is written to meanwhile.

    A dry run reads and hashes, and writes nothing.
    """
    began_ns = time.time_ns()
    ordered = sorted(files, key=lambda file: file.path)
    stats = [file.found or os.lstat(file.location) for file in ordered]
    signature = _signature(objects, ordered, stats)
    if index is not None and (known := present(objects, index.tree(signature))):
        return known
    writer = TreeWriter(objects, index, dry_run, began_ns)
    check_paths(ordered, "to be written")
    tree = Tree(entries=writer.entries(ordered, stats, progress))
    digest = writer.put(codec.encode(tree))
    if index is not None and not dry_run and all(settled(stamp(found), began_ns) for found in stats):
        known_tree = KnownTree(
            digest=digest, files=len(tree.entries), size_bytes=tree.size_bytes, objects=tuple(writer.needed.items())
        )
        index.remember_tree(signature, known_tree)
    return Written(digest=digest, files=len(tree.entries), size_bytes=tree.size_bytes, new_bytes=writer.new_bytes)


def is_still(objects: Objects, files: Sequence[SourceFile], index: Index, digest: Digest) -> bool:
    """Return whether `files` are as they were when they were written as `digest` a moment ago.

    Where their stamps tell, nothing is read, and nothing is asked of the store: what it has was seen at the writing.
    """
    known = recorded(objects, files, index)
    return digest == (known or write_tree(objects, files, index, dry_run=True)).digest


def recorded(objects: Objects, files: Sequence[SourceFile], index: Index) -> KnownTree | None:
    """Return the tree that `files`, as `lstat` says now that they are, were written as; None if they were not."""
    ordered = sorted(files, key=lambda file: file.path)
    return index.tree(_signature(objects, ordered, [os.lstat(file.location) for file in ordered]))


def present(objects: Objects, known: KnownTree | None) -> Written | None:
    """Return what was written before, if every object that it needs is still there."""
    if known is None or presence.missing(objects, dict(known.objects)):
        return None
    return Written(digest=known.digest, files=known.files, size_bytes=known.size_bytes, new_bytes=0, unchanged=True)


def load(objects: Objects, digest: Digest) -> Tree:
    """Return a tree, whose entries are checked. Raises NotFound, CorruptObject."""
    tree = objects.get_record(digest, Tree)
    check(objects, tree.entries, digest)
    return tree


def read_file(objects: Objects, entry: Entry) -> bytes:
    """Return a file's content, verified. A link's content is its target."""
    if entry.link is not None:
        return entry.link
    return b"".join(objects.read(part) for part in entry.parts)


def _signature(objects: Objects, files: Sequence[SourceFile], stats: Sequence[os.stat_result]) -> Digest:
    """Return a digest of every path and stamp: equal signatures mean that nothing needs to be looked at."""
    stamps = list(map(_STAMPED, stats))
    paths = [file.path for file in files]
    locations = [os.fspath(file.location) for file in files]
    try:
        return objects.digest(codec.encode_plain((paths, locations, stamps)))
    except UnicodeEncodeError:
        # A location that is not UTF-8; the usual case is spared the conversion.
        return objects.digest(codec.encode_plain((paths, list(map(os.fsencode, locations)), stamps)))
