"""Files on disk to a tree, and a tree to files.

A tree is a pure function of paths, modes and contents: files of at least `Format.small_bytes` are cut into
chunks, smaller ones are named by their content alone. Where these lie is not part of it: a packing says so, which names
packs that the store had already as well as new ones (docs/format.md).
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
from m5ws.records.tree import Entry, Packing, Slice, Tree
from m5ws.repository import presence
from m5ws.repository.files import packings
from m5ws.repository.files.index import Index, KnownTree, settled
from m5ws.repository.files.interface import SourceFile
from m5ws.repository.files.locations import PackLocations, is_whole
from m5ws.repository.files.validation import check, check_paths
from m5ws.repository.files.writer import TreeWriter
from m5ws.repository.objects import Objects

_log = logging.getLogger(__name__)
_TAKE_AGAIN = "Take the snapshot again where its files are: its new annotation names one."


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that is durable (or would be, on a dry run): its digest, its size, and the bytes that were new.

    `packing` says where its small files lie; None if it has none.
    """

    digest: Digest
    packing: Digest | None
    files: int
    size_bytes: int
    new_bytes: int
    unchanged: bool = False


def write_tree(
    objects: Objects,
    locations: PackLocations,
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
    if index is not None and (known := present(objects, locations, [index.tree(signature)])):
        return known[0]
    writer = TreeWriter(objects, index, dry_run, began_ns)
    check_paths(ordered, "to be written")
    tree = Tree(entries=writer.entries(ordered, stats, progress))
    digest, packing = writer.finish(tree)
    if not dry_run:
        locations.add_tree(digest, packing)
    stays = not writer.mapped and all(settled(stamp(found), began_ns) for found in stats)
    if index is not None and not dry_run and stays:
        known_tree = KnownTree(
            digest=digest,
            packing=packing,
            files=len(tree.entries),
            size_bytes=tree.size_bytes,
            objects=tuple(writer.needed.items()),
        )
        index.remember_tree(signature, known_tree)
    return Written(
        digest=digest, packing=packing, files=len(tree.entries), size_bytes=tree.size_bytes, new_bytes=writer.new_bytes
    )


def is_still(
    objects: Objects, locations: PackLocations, files: Sequence[SourceFile], index: Index, digest: Digest
) -> bool:
    """Return whether `files` are as they were when they were written as `digest` a moment ago.

    Where their stamps tell, nothing is read, and nothing is asked of the store: what it has was seen at the writing.
    """
    known = recorded(objects, files, index)
    return digest == (known or write_tree(objects, locations, files, index, dry_run=True)).digest


def recorded(objects: Objects, files: Sequence[SourceFile], index: Index) -> KnownTree | None:
    """Return the tree that `files` were written as, None if they were not: by `found`, or as `lstat` says now."""
    ordered = sorted(files, key=lambda file: file.path)
    return index.tree(_signature(objects, ordered, [file.found or os.lstat(file.location) for file in ordered]))


def present(
    objects: Objects, locations: PackLocations, known: Sequence[KnownTree | None]
) -> tuple[Written, ...] | None:
    """Return what was written before, if every object that all of it needs is still there; asked for at once."""
    trees = [tree for tree in known if tree is not None]
    if len(trees) < len(known) or presence.missing(
        objects, {name: size for tree in trees for name, size in tree.objects}
    ):
        return None
    for tree in trees:
        locations.add_tree(tree.digest, tree.packing)
    return tuple(map(_written_before, trees))


def _written_before(known: KnownTree) -> Written:
    return Written(
        digest=known.digest,
        packing=known.packing,
        files=known.files,
        size_bytes=known.size_bytes,
        new_bytes=0,
        unchanged=True,
    )


def load(objects: Objects, digest: Digest) -> Tree:
    """Return a tree as it is stored, checked: small files have no parts. Raises NotFound, CorruptObject."""
    tree = objects.get_record(digest, Tree)
    check(objects, tree.entries, digest)
    return tree


def located(objects: Objects, locations: PackLocations, digest: Digest, packing: Digest | None = None) -> Tree:
    """Return a tree whose files can be read: as `load`, with the parts of small files.

    Their packs are those of `packing`, else of the packings in `locations`. Raises NotFound if there is none,
    CorruptObject.
    """
    tree = load(objects, digest)
    if not packings.needed(tree.entries):
        locations.add_tree(digest, None)
        return tree
    trouble: Exception | None = None
    for found in [packing] if packing is not None else _packings(objects, locations, digest, tree.entries):
        try:
            entries = packings.filled(tree.entries, objects.get_record(found, Packing), digest, found)
        except UNREADABLE as error:
            trouble = trouble or error
            continue
        locations.add_tree(digest, found)
        return Tree(entries=entries)
    raise trouble or _not_located(locations, digest)


def is_found(objects: Objects, locations: PackLocations, digest: Digest) -> bool:
    """Return True if an annotation names a packing of the tree that is whole, or the tree needs none."""
    entries = load(objects, digest).entries
    if not packings.needed(entries):
        return True
    return any(is_whole(objects, digest, entries, one) for one in locations.annotated(digest))


def packing_of(objects: Objects, locations: PackLocations, digest: Digest) -> Digest | None:
    """Return the packing of a tree, None if it has no small files. Raises as `located`."""
    if (known := locations.written(digest)) is not None:
        return known[0]
    entries = load(objects, digest).entries
    if not packings.needed(entries):
        locations.add_tree(digest, None)
        return None
    for found in _packings(objects, locations, digest, entries):
        if objects.has(found):
            locations.add_tree(digest, found)
            return found
    raise _not_located(locations, digest)


def counting(objects: Objects, annotated: Iterable[Mapping[Digest, Digest]], *, lenient: bool = False) -> list[Digest]:
    """Return the packings that a snapshot needs, of all that its annotations name.

    All, but for those of which something is not there where another one of the same tree is whole: what a store has
    lost is replaced by taking the snapshot again, and then nobody needs the rest of it. Raises what is wrong with the
    store, and UnknownSchema, since a newer m5ws may need what it wrote; to the `lenient` such a packing is not whole.
    """
    named: dict[Digest, dict[Digest, None]] = {}
    for packing_of_tree in annotated:
        for tree, packing in packing_of_tree.items():
            named.setdefault(tree, {})[packing] = None
    found: dict[Digest, None] = {}
    for tree, several in named.items():
        whole = list[Digest]()
        if len(several) > 1:
            with suppress(NotFound, CorruptObject):
                entries = load(objects, tree).entries
                whole = [one for one in several if is_whole(objects, tree, entries, one, lenient=lenient)]
        found |= dict.fromkeys(whole or several)
    return list(found)


def _not_located(locations: PackLocations, digest: Digest) -> Exception:
    """Return the error for a tree without a packing: the annotation that names one may only be out of reach."""
    return locations.error(digest) or NotFound(
        f"no annotation names a packing with the small files of tree {digest}", hint=_TAKE_AGAIN
    )


def _packings(objects: Objects, locations: PackLocations, digest: Digest, entries: Sequence[Entry]) -> Iterator[Digest]:
    """Yield the packings of a tree: the one written, then whole ones; they are checked only where there are several."""
    written = locations.written(digest)
    if written is not None and written[0] is not None:
        yield written[0]
    several = list(locations.annotated(digest))
    yield from sorted(several, key=lambda one: len(several) > 1 and not is_whole(objects, digest, entries, one))


def read_file(objects: Objects, locations: PackLocations, entry: Entry) -> bytes:
    """Return the content of a file of a located tree, verified. A link's content is its target."""
    if entry.link is not None:
        return entry.link
    if sum(part.size_bytes for part in entry.parts) != entry.size_bytes:
        raise CorruptObject(f"{entry.name} has {entry.size_bytes} bytes, and its parts have not: it was not located")
    try:
        return b"".join(objects.read(part) for part in entry.parts)
    except (M5Error, OSError) as trouble:
        if len(entry.parts) != 1:
            raise
        return bytes(read_elsewhere(objects, locations, entry.parts, trouble)[0])


def read_elsewhere(
    objects: Objects, locations: PackLocations, parts: Sequence[Slice], trouble: M5Error | OSError
) -> list[memoryview]:
    """Return what small files hold, verified, of which one could not be read: `trouble` was met in their pack.

    Other packings of their trees may name other packs: the same snapshot was taken by somebody else, or again. One
    pack suffices, whatever became of the others. Raises `trouble` if none has a file.
    """
    others = {part: locations.elsewhere(part) for part in parts}
    if not any(others.values()):
        raise trouble
    level = logging.WARNING if locations.warns() else logging.INFO
    _log.log(level, "files are read from other packs, `m5ws fsck --read-data` names what is damaged: %s", trouble)
    found = _read_together(objects, others)
    return [found[part] if part in found else _read_one_of(objects, (*others[part], part), trouble) for part in parts]


def _read_together(objects: Objects, others: Mapping[Slice, Sequence[Slice]]) -> dict[Slice, memoryview]:
    """Return what can be read of several files by reading a pack once: what had one pack may have another."""
    packs: dict[Digest, dict[Slice, Slice]] = {}
    for part, places in others.items():
        for place in places:
            packs.setdefault(place.object, {})[part] = place
    found: dict[Slice, memoryview] = {}
    for pack, wanted in sorted(packs.items(), key=lambda one: -len(one[1])):
        lacking = {part: place for part, place in wanted.items() if part not in found}
        # What has one file alone is read in part.
        if len(lacking) > 1:
            try:
                found |= dict(zip(lacking, objects.pieces(pack, list(lacking.values())), strict=True))
            except (M5Error, OSError) as error:
                _log.debug("pack %s: %s", pack, error)
    return found


def _read_one_of(objects: Objects, places: Sequence[Slice], trouble: M5Error | OSError) -> memoryview:
    for place in places:
        try:
            return memoryview(objects.read(place))
        except (M5Error, OSError) as error:
            _log.debug("pack %s: %s", place.object, error)
    raise trouble


def _signature(objects: Objects, files: Sequence[SourceFile], stats: Sequence[os.stat_result]) -> Digest:
    """Return a digest of every path and stamp, and of how files are cut: equal ones mean the same tree, unlooked at."""
    form = objects.format
    cut = (form.hash, form.small_bytes, form.chunk_bytes, form.file_chunk_bytes)
    stamps = list(map(mode_and_stamp, stats))
    paths = [file.path for file in files]
    locations = [os.fspath(file.location) for file in files]
    try:
        return objects.digest(codec.encode_plain((cut, paths, locations, stamps)))
    except UnicodeEncodeError:
        # A location that is not UTF-8; the usual case is spared the conversion.
        return objects.digest(codec.encode_plain((cut, paths, list(map(os.fsencode, locations)), stamps)))
