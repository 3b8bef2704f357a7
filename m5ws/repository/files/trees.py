"""Files to trees, and content of trees.

A tree is a pure function of paths, modes and contents. Files of at least `Format.small_bytes` are split into chunks;
smaller ones are named by their content alone. The location of small files is not part of a tree: a packing lists their
packs, both existing and new ones (docs/format.md).
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from m5ws.errors import UNREADABLE, CorruptObject, M5Error, NotFound
from m5ws.filesystem import mode_and_stamp, stamp
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.base import Digest
from m5ws.records.tree import Entry, Pack, Packing, Slice, Tree
from m5ws.repository import presence
from m5ws.repository.files import packings
from m5ws.repository.files.index import Index, KnownTree, Written, is_settled
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.locations import PackLocations, is_whole
from m5ws.repository.files.validation import check, check_paths, is_small, joint_digest
from m5ws.repository.files.writer import TreeWriter
from m5ws.repository.objects import Objects

_log = logging.getLogger(__name__)
_TAKE_AGAIN = "Run `m5ws snapshot` again in the original working directory: its annotation will name one."


def write_tree(
    objects: Objects,
    locations: PackLocations,
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
    if index is not None and (known := present(objects, locations, [index.tree(signature)])):
        return known[0]
    writer = TreeWriter(objects, index, dry_run, began_ns)
    check_paths(ordered, "to be written")
    tree = Tree(entries=writer.entries(ordered, stats, progress))
    digest, packing = writer.finish(tree)
    if not dry_run:
        locations.add_tree(digest, packing)
    stays = not writer.mapped and all(is_settled(stamp(found), began_ns) for found in stats)
    written = Written(digest=digest, packing=packing, files=len(tree.entries), size_bytes=tree.size_bytes)
    if index is not None and not dry_run and stays:
        known_tree = msgspec.structs.replace(written, unchanged=True)
        index.remember_tree(signature, KnownTree(tree=known_tree, objects=tuple(writer.needed.items())))
    return msgspec.structs.replace(written, new_bytes=writer.new_bytes)


def rewrite_tree(
    objects: Objects,
    locations: PackLocations,
    entries: Sequence[Entry],
    contents: Mapping[bytes, bytes],
    sources: Sequence[Digest],
) -> Digest:
    """Make a tree of located `entries` durable, some with new `contents` by path, and return its digest.

    `sources` are the trees of the entries. Unchanged small files stay in their packs, unless a pack is missing.
    """
    named = (packing_of(objects, locations, source) for source in sources)
    known = [pack for packing in named if packing for pack in objects.get_record(packing, Packing).packs]
    needed = {part.object for entry in entries if is_small(objects, entry) for part in entry.parts}
    packs = {pack.object: pack for pack in known if pack.object in needed}
    for lost in presence.missing(objects, {name: pack.size_bytes for name, pack in packs.items()}):
        del packs[lost]
    written: list[Entry] = []
    for entry in entries:
        data = contents.get(entry.path)
        if data is None and is_small(objects, entry) and any(part.object not in packs for part in entry.parts):
            data = read_file(objects, locations, entry)
        new = entry if data is None else _put_content(objects, entry, data)
        small = is_small(objects, new)
        if small and data is not None:
            # The object of one small file has the name of its content.
            packs[new.digest] = Pack(object=new.digest, files=bytes.fromhex(new.digest), sizes_bytes=(new.size_bytes,))
        written.append(msgspec.structs.replace(new, parts=()) if small else new)
    digest = objects.put_record(Tree(entries=tuple(written)))
    packing = objects.put_record(Packing(packs=tuple(pack for _, pack in sorted(packs.items())))) if packs else None
    locations.add_tree(digest, packing)
    return digest


def _put_content(objects: Objects, entry: Entry, data: bytes) -> Entry:
    """Make the new content of a file durable, and return its entry, with chunks if the file is large."""
    cut = objects.format.file_chunk_bytes if len(data) >= objects.format.small_bytes else max(1, len(data))
    chunks = [data[begin : begin + cut] for begin in range(0, len(data), cut)]
    parts = tuple(
        Slice(object=digest, offset=0, size_bytes=len(chunk), digest=digest)
        for digest, chunk in zip(map(objects.put, chunks), chunks, strict=True)
    )
    digest = joint_digest(objects, [part.digest for part in parts]) if parts else objects.digest(data)
    return msgspec.structs.replace(entry, size_bytes=len(data), digest=digest, parts=parts)


def is_still(
    objects: Objects, locations: PackLocations, files: Sequence[SourceFile], index: Index, digest: Digest
) -> bool:
    """Return True if `files` are unchanged since they were written as `digest` a moment ago.

    If the stamps decide, neither files nor the store are read: the store's objects were checked when writing.
    """
    known = recorded(objects, files, index)
    now = known.tree if known is not None else write_tree(objects, locations, files, index, dry_run=True)
    return digest == now.digest


def recorded(objects: Objects, files: Sequence[SourceFile], index: Index) -> KnownTree | None:
    """Return the tree recorded for `files` with their stamps (`found`, or by `lstat`), or None."""
    ordered = sorted(files, key=lambda file: file.path)
    return index.tree(_signature(objects, ordered, [file.found or os.lstat(file.location) for file in ordered]))


def present(
    objects: Objects, locations: PackLocations, known: Sequence[KnownTree | None]
) -> tuple[Written, ...] | None:
    """Return previously written trees if every object they need still exists, checked together; otherwise None."""
    trees = [tree for tree in known if tree is not None]
    needs = {name: size for tree in trees for name, size in tree.objects}
    if len(trees) < len(known) or presence.missing(objects, needs):
        return None
    for known_tree in trees:
        locations.add_tree(known_tree.tree.digest, known_tree.tree.packing)
    return tuple(known_tree.tree for known_tree in trees)


def load(objects: Objects, digest: Digest) -> Tree:
    """Return a tree as stored, after validation; small files have no parts. Raises NotFound, CorruptObject."""
    tree = objects.get_record(digest, Tree)
    check(objects, tree.entries, digest)
    return tree


def located(objects: Objects, locations: PackLocations, digest: Digest, packing: Digest | None = None) -> Tree:
    """Return a tree with readable files: as `load`, with the parts of small files.

    The packs come from `packing`, or else from the packings in `locations`. Raises NotFound if there is none,
    CorruptObject.
    """
    tree = load(objects, digest)
    if not packings.needed(tree.entries):
        locations.add_tree(digest, None)
        return tree
    trouble: Exception | None = None
    for candidate in [packing] if packing is not None else _packings(objects, locations, digest, tree.entries):
        try:
            entries = packings.filled(tree.entries, objects.get_record(candidate, Packing), digest, candidate)
        except UNREADABLE as error:
            trouble = trouble or error
            continue
        locations.add_tree(digest, candidate)
        return Tree(entries=entries)
    raise trouble or _not_located(locations, digest)


def is_found(objects: Objects, locations: PackLocations, digest: Digest) -> bool:
    """Return True if an annotation names a complete packing of the tree, or the tree needs none."""
    entries = load(objects, digest).entries
    if not packings.needed(entries):
        return True
    return any(is_whole(objects, digest, entries, packing) for packing in locations.annotated(digest))


def packing_of(objects: Objects, locations: PackLocations, digest: Digest) -> Digest | None:
    """Return the packing of a tree, or None if it has no small files. Raises as `located`."""
    if (known := locations.written(digest)) is not None:
        return known[0]
    entries = load(objects, digest).entries
    if not packings.needed(entries):
        locations.add_tree(digest, None)
        return None
    for candidate in _packings(objects, locations, digest, entries):
        if objects.has(candidate):
            locations.add_tree(digest, candidate)
            return candidate
    raise _not_located(locations, digest)


def counting(objects: Objects, annotated: Iterable[Mapping[Digest, Digest]], *, lenient: bool = False) -> list[Digest]:
    """Return the packings that a snapshot needs, out of all packings in its annotations.

    If one packing of a tree is complete, incomplete ones are ignored: after a loss, a new snapshot replaces them.
    Errors of the store are raised, and UnknownSchema, because a newer m5ws may need its packing. If `lenient`, such a
    packing counts as incomplete.
    """
    named: dict[Digest, dict[Digest, None]] = {}
    for packing_of_tree in annotated:
        for tree, packing in packing_of_tree.items():
            named.setdefault(tree, {})[packing] = None
    counted: dict[Digest, None] = {}
    for tree, several in named.items():
        whole = list[Digest]()
        if len(several) > 1:
            with suppress(NotFound, CorruptObject):
                entries = load(objects, tree).entries
                whole = [packing for packing in several if is_whole(objects, tree, entries, packing, lenient=lenient)]
        counted |= dict.fromkeys(whole or several)
    return list(counted)


def _not_located(locations: PackLocations, digest: Digest) -> Exception:
    """Return the error for a tree without a packing. If an annotation is unreachable, its error comes first."""
    return locations.error(digest) or NotFound(
        f"no annotation names a packing with the small files of tree {digest}", hint=_TAKE_AGAIN
    )


def _packings(objects: Objects, locations: PackLocations, digest: Digest, entries: Sequence[Entry]) -> Iterator[Digest]:
    """Yield the packings of a tree: the written one, then complete ones. Only checked if there are several."""
    written = locations.written(digest)
    if written is not None and written[0] is not None:
        yield written[0]
    several = list(locations.annotated(digest))
    yield from sorted(several, key=lambda packing: len(several) > 1 and not is_whole(objects, digest, entries, packing))


def read_file(objects: Objects, locations: PackLocations, entry: Entry) -> bytes:
    """Return the content of a file of a located tree, verified. For a link, its target."""
    if entry.link is not None:
        return entry.link
    if sum(part.size_bytes for part in entry.parts) != entry.size_bytes:
        raise CorruptObject(
            f"{entry.name} has {entry.size_bytes} bytes, but its parts do not: the tree was not located"
        )
    try:
        return b"".join(objects.read(part) for part in entry.parts)
    except (M5Error, OSError) as trouble:
        if len(entry.parts) != 1:
            raise
        return bytes(read_elsewhere(objects, locations, entry.parts, trouble)[0])


def read_elsewhere(
    objects: Objects, locations: PackLocations, parts: Sequence[Slice], trouble: M5Error | OSError
) -> list[memoryview]:
    """Return the contents of small files, verified, after `trouble` in their pack.

    Other packings of their trees may name other packs, from another snapshot of the same files. One pack is enough,
    even if others are damaged. Raises `trouble` if no pack has a file.
    """
    others = {part: locations.elsewhere(part) for part in parts}
    if not any(others.values()):
        raise trouble
    level = logging.WARNING if locations.warns() else logging.INFO
    _log.log(level, "reading files from other packs; run `m5ws fsck --read-data` to list damage: %s", trouble)
    contents = _read_together(objects, others)
    return [
        contents[part] if part in contents else _read_one_of(objects, (*others[part], part), trouble) for part in parts
    ]


def _read_together(objects: Objects, others: Mapping[Slice, Sequence[Slice]]) -> dict[Slice, memoryview]:
    """Return the files that can be read from packs with several of them, reading each pack once."""
    packs: dict[Digest, dict[Slice, Slice]] = {}
    for part, places in others.items():
        for place in places:
            packs.setdefault(place.object, {})[part] = place
    contents: dict[Slice, memoryview] = {}
    for pack, wanted in sorted(packs.items(), key=lambda item: -len(item[1])):
        lacking = {part: place for part, place in wanted.items() if part not in contents}
        # A pack with only one of the files is read in part, later.
        if len(lacking) > 1:
            try:
                contents |= dict(zip(lacking, objects.pieces(pack, list(lacking.values())), strict=True))
            except (M5Error, OSError) as error:
                _log.debug("pack %s: %s", pack, error)
    return contents


def _read_one_of(objects: Objects, places: Sequence[Slice], trouble: M5Error | OSError) -> memoryview:
    for place in places:
        try:
            return memoryview(objects.read(place))
        except (M5Error, OSError) as error:
            _log.debug("pack %s: %s", place.object, error)
    raise trouble


def _signature(objects: Objects, files: Sequence[SourceFile], stats: Sequence[os.stat_result]) -> Digest:
    """Return a digest of all paths and stamps, and of the chunk sizes. Equal signatures mean equal trees."""
    form = objects.format
    cut = (form.hash, form.small_bytes, form.chunk_bytes, form.file_chunk_bytes)
    stamps = list(map(mode_and_stamp, stats))
    paths = [file.path for file in files]
    locations = [os.fsencode(file.location) for file in files]
    return objects.digest(codec.encode_plain((cut, paths, locations, stamps)))
