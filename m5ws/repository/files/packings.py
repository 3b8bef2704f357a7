"""Packings: trees name small files by content alone, and a packing lists the packs that contain them.

So a tree is a pure function of its files, and existing objects only affect the upload (docs/format.md).
"""

from collections.abc import Iterator, Sequence

import msgspec

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.base import OBJECT_BYTES, Digest
from m5ws.records.tree import Entry, Packing, Slice


def needed(entries: Sequence[Entry]) -> bool:
    """Return True if there are small files among `entries`, so that their tree needs a packing."""
    return any(map(_is_small, entries))


def _is_small(entry: Entry) -> bool:
    return not entry.parts and entry.link is None and entry.size_bytes > 0


def check(packing: Packing, what: str) -> None:
    """Raise CorruptObject if a packing contradicts itself. `what` names it in the error."""
    for pack in packing.packs:
        if len(pack.files) != 32 * len(pack.sizes_bytes) or not pack.sizes_bytes:
            raise CorruptObject(f"packing {what} has {len(pack.sizes_bytes)} sizes, but another number of files")
        if pack.size_bytes > OBJECT_BYTES:
            raise CorruptObject(f"packing {what} has a pack of {pack.size_bytes} bytes, more than an object can have")


def slices(packing: Packing, what: str) -> Iterator[Slice]:
    """Yield the location of each file. Raises CorruptObject if the packing, named `what`, contradicts itself."""
    check(packing, what)
    for pack in packing.packs:
        offset = 0
        for name, size in zip(pack.names, pack.sizes_bytes, strict=True):
            yield Slice(object=pack.object, offset=offset, size_bytes=size, digest=name.hex())
            offset += size


def filled(entries: Sequence[Entry], packing: Packing, tree: Digest, what: str) -> tuple[Entry, ...]:
    """Return `entries` of a tree, with the parts of small files from a packing named `what`.

    Raises CorruptObject if the two contradict each other, NotFound if the packing lacks a file.
    """
    locations = {location.digest: location for location in slices(packing, what)}
    whole: list[Entry] = []
    for entry in entries:
        if not _is_small(entry):
            whole.append(entry)
            continue
        location = locations.get(entry.digest)
        if location is None:
            raise NotFound(f"packing {what} does not contain {entry.name} of tree {tree}")
        if location.size_bytes != entry.size_bytes:
            raise CorruptObject(
                f"{entry.name} has {entry.size_bytes} bytes in tree {tree}, but {location.size_bytes} in packing {what}"
            )
        whole.append(msgspec.structs.replace(entry, parts=(location,)))
    return tuple(whole)
