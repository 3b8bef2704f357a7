"""Files to trees, and content of trees.

A tree is a pure function of paths, modes and contents. Files of at least `Format.small_bytes` are split into chunks;
smaller files are joined into packs (`packs`).
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from m5ws.errors import CorruptObject
from m5ws.filesystem import mode_and_stamp, stamp
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, Pack, Slice, Tree
from m5ws.repository import presence
from m5ws.repository.files import packs as tree_packs
from m5ws.repository.files.index import Index, KnownTree, Written, is_settled
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.packs import PackGroups
from m5ws.repository.files.validation import check, check_paths, is_small, joint_digest
from m5ws.repository.files.writer import TreeWriter
from m5ws.repository.objects import Objects


def write_tree(
    objects: Objects,
    files: Sequence[SourceFile],
    index: Index | None = None,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> Written:
    """Capture `files` and make their tree durable. Raises FileChanged if a file changes meanwhile.

    A dry run reads and hashes, but writes nothing.
    """
    began_ns = time.time_ns()
    ordered = sorted(files, key=lambda file: file.path)
    stats = [file.found or os.lstat(file.location) for file in ordered]
    signature = _signature(objects, ordered, stats)
    if index is not None and (known := present(objects, [index.tree(signature)])):
        return known[0]
    writer = TreeWriter(objects, index, dry_run, began_ns)
    check_paths(ordered, "to be written")
    tree = writer.write(ordered, stats, progress)
    digest = writer.put(codec.encode(tree))
    stays = all(is_settled(stamp(found), began_ns) for found in stats)
    written = Written(digest=digest, files=len(tree.entries), size_bytes=tree.size_bytes)
    if index is not None and not dry_run and stays:
        known_tree = msgspec.structs.replace(written, unchanged=True)
        index.remember_tree(signature, KnownTree(tree=known_tree, objects=tuple(writer.needed.items())))
    return msgspec.structs.replace(written, new_bytes=writer.new_bytes)


def rewrite_tree(
    objects: Objects, entries: Sequence[Entry], contents: Mapping[bytes, bytes], packs: Iterable[Pack]
) -> Digest:
    """Make a tree of `entries` of loaded trees durable, some with new `contents` by path, and return its digest.

    `packs` belong to the loaded trees. A pack with the same files as a pack of the new tree is not read.
    """
    known = {(pack.object, pack.files) for pack in packs}
    groups = PackGroups[Entry](objects.format.pack_bytes)
    new = [_put_content(objects, entry, contents[entry.path]) if entry.path in contents else entry for entry in entries]
    small = [entry for entry in new if is_small(objects, entry)]
    grouped = [group for entry in small for group in groups.add(entry, entry.digest, entry.size_bytes)]
    made = [
        Pack(object=_known_pack(group, known) or _put_pack(objects, group, contents), files=len(group))
        for group in (*grouped, *groups.end())
    ]
    stored = (msgspec.structs.replace(entry, parts=()) if is_small(objects, entry) else entry for entry in new)
    return objects.put_record(Tree(entries=tuple(stored), packs=tuple(made)))


def _known_pack(group: Sequence[Entry], known: set[tuple[Digest, int]]) -> Digest | None:
    """Return the pack that has exactly the files of a group in their order, or None."""
    offset = 0
    for entry in group:
        part = entry.parts[0] if entry.parts else None
        if part is None or part.object != group[0].parts[0].object or part.offset != offset:
            return None
        offset += entry.size_bytes
    found = group[0].parts[0].object
    return found if (found, len(group)) in known else None


def _put_pack(objects: Objects, group: Sequence[Entry], contents: Mapping[bytes, bytes]) -> Digest:
    """Join small files into a pack."""
    return objects.put(b"".join(contents.get(entry.path) or read_file(objects, entry) for entry in group))


def _put_content(objects: Objects, entry: Entry, data: bytes) -> Entry:
    """Return the entry of a file with new content. The chunks of a large file are made durable."""
    if len(data) < objects.format.small_bytes:
        return msgspec.structs.replace(entry, size_bytes=len(data), digest=objects.digest(data), parts=())
    cut = objects.format.file_chunk_bytes
    chunks = [data[begin : begin + cut] for begin in range(0, len(data), cut)]
    parts = tuple(
        Slice(object=digest, offset=0, size_bytes=len(chunk), digest=digest)
        for digest, chunk in zip(map(objects.put, chunks), chunks, strict=True)
    )
    digest = joint_digest(objects, [part.digest for part in parts])
    return msgspec.structs.replace(entry, size_bytes=len(data), digest=digest, parts=parts)


def is_still(objects: Objects, files: Sequence[SourceFile], index: Index, digest: Digest) -> bool:
    """Return True if `files` are unchanged since they were written as `digest` a moment ago.

    If the stamps decide, neither files nor the store are read: the store's objects were checked when writing.
    """
    known = recorded(objects, files, index)
    now = known.tree if known is not None else write_tree(objects, files, index, dry_run=True)
    return digest == now.digest


def recorded(objects: Objects, files: Sequence[SourceFile], index: Index) -> KnownTree | None:
    """Return the tree recorded for `files` with their stamps (`found`, or by `lstat`), or None."""
    return index.tree(_signature_now(objects, files))


def mark_passed(objects: Objects, files: Sequence[SourceFile], index: Index, check: str) -> None:
    """Record that `files` have passed a check, if their tree is recorded."""
    index.pass_tree(_signature_now(objects, files), check)


def _signature_now(objects: Objects, files: Sequence[SourceFile]) -> Digest:
    ordered = sorted(files, key=lambda file: file.path)
    return _signature(objects, ordered, [file.found or os.lstat(file.location) for file in ordered])


def present(objects: Objects, known: Sequence[KnownTree | None]) -> tuple[Written, ...] | None:
    """Return previously written trees if every object they need still exists, checked together; otherwise None."""
    trees = [tree for tree in known if tree is not None]
    needs = {name: size for tree in trees for name, size in tree.objects}
    if len(trees) < len(known) or presence.missing(objects, needs):
        return None
    return tuple(known_tree.tree for known_tree in trees)


def load(objects: Objects, digest: Digest) -> Tree:
    """Return a tree, whose files can be read. Raises NotFound, UnknownSchema, and CorruptObject if it is invalid."""
    tree = objects.get_record(digest, Tree)
    check(objects, tree.entries, digest)
    return tree_packs.locate(objects, tree, digest)


def read_file(objects: Objects, entry: Entry) -> bytes:
    """Return the content of a file of a loaded tree, verified. For a link, its target."""
    if entry.link is not None:
        return entry.link
    if sum(part.size_bytes for part in entry.parts) != entry.size_bytes:
        raise CorruptObject(f"{entry.name} has {entry.size_bytes} bytes, but its parts do not")
    return b"".join(objects.read(part) for part in entry.parts)


def _signature(objects: Objects, files: Sequence[SourceFile], stats: Sequence[os.stat_result]) -> Digest:
    """Return a digest of all paths and stamps, and of the chunk sizes. Equal signatures mean equal trees."""
    form = objects.format
    cut = (form.hash, form.small_bytes, form.chunk_bytes, form.file_chunk_bytes)
    stamps = list(map(mode_and_stamp, stats))
    paths = [file.path for file in files]
    locations = [os.fsencode(file.location) for file in files]
    return objects.digest(codec.encode_plain((cut, paths, locations, stamps)))
