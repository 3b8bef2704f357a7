"""Where small files lie: trees name them by content alone, and a packing beside a tree says which packs hold them.

So a tree is a pure function of its files, and what the store had before decides only what is sent (docs/format.md).
"""

from collections.abc import Iterator, Sequence

import msgspec

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.base import OBJECT_BYTES, Digest
from m5ws.records.tree import Entry, Packing, Slice


def needed(entries: Sequence[Entry]) -> bool:
    """Return whether there are small files among `entries`, whose places a packing must say."""
    return any(map(_is_small, entries))


def _is_small(entry: Entry) -> bool:
    return not entry.parts and entry.link is None and entry.size_bytes > 0


def check(packing: Packing, what: str) -> None:
    """Refuse a packing, called `what`, that contradicts itself. Raises CorruptObject."""
    for pack in packing.packs:
        if len(pack.files) != 32 * len(pack.sizes_bytes) or not pack.sizes_bytes:
            raise CorruptObject(f"packing {what} has {len(pack.sizes_bytes)} sizes and another number of files")
        if pack.size_bytes > OBJECT_BYTES:
            raise CorruptObject(f"packing {what} has a pack of {pack.size_bytes} bytes, which no object has")


def slices(packing: Packing, what: str) -> Iterator[Slice]:
    """Yield where each file lies. Raises CorruptObject for a packing, called `what`, that contradicts itself."""
    check(packing, what)
    for pack in packing.packs:
        offset = 0
        for name, size in zip(pack.names, pack.sizes_bytes, strict=True):
            yield Slice(object=pack.object, offset=offset, size_bytes=size, digest=name.hex())
            offset += size


def filled(entries: Sequence[Entry], packing: Packing, tree: Digest, what: str) -> tuple[Entry, ...]:
    """Return `entries` of a tree with the parts of small files, which a packing, called `what`, names.

    Raises CorruptObject if the two contradict each other, NotFound if it does not name all.
    """
    places = {place.digest: place for place in slices(packing, what)}
    whole: list[Entry] = []
    for entry in entries:
        if not _is_small(entry):
            whole.append(entry)
            continue
        place = places.get(entry.digest)
        if place is None:
            raise NotFound(f"packing {what} does not say where {entry.name} of tree {tree} lies")
        if place.size_bytes != entry.size_bytes:
            raise CorruptObject(
                f"{entry.name} has {entry.size_bytes} bytes in tree {tree}, and {place.size_bytes} in packing {what}"
            )
        whole.append(msgspec.structs.replace(entry, parts=(place,)))
    return tuple(whole)
