"""Which packs of a store are left as they are when a tree is written, and whether they hold what is said of them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from m5ws.errors import M5Error
from m5ws.ports import Near
from m5ws.records import Digest, Pack
from m5ws.repository import presence
from m5ws.repository.objects import Objects, key

LEAST_PACK = 4
"""A pack below a fourth of `Format.pack_bytes` is small."""
_SMALL_PACKS = 16
"""So many small packs are borne with: more are joined."""
_NEAR_BYTES = 2**17
"""What lies between two wanted parts of a pack is read with them if it is no more: it costs less than a request."""

_File = TypeVar("_File")


def chosen(
    objects: Objects, packs: Sequence[Pack], wanted: Collection[bytes], lying: Callable[[Sequence[Pack]], set[Digest]]
) -> dict[bytes, Pack]:
    """Return, by file, which of `packs` are in the store, hold some of the `wanted` and are worth being left alone.

    Not those of which less than half is used, and not small ones if there are many: reading a tree costs at most
    twice its bytes, and about as many requests as if all of it were packed anew. Not those that `lying` returns of
    what would be left. It does not depend on the order of `packs`.
    """
    held = {
        pack.object: {n: s for n, s in zip(pack.names, pack.sizes_bytes, strict=True) if n in wanted} for pack in packs
    }
    kept = {pack.object: pack for pack in packs if 0 < pack.size_bytes <= 2 * sum(held[pack.object].values())}
    sizes = {name: pack.size_bytes for name, pack in kept.items()}
    for name in presence.missing(objects, sizes, lenient=True) if sizes else ():
        del kept[name]
    while True:
        # A file that several hold counts for the one that holds most; the others may be worth nothing then.
        places: dict[bytes, Pack] = {}
        for pack in sorted(kept.values(), key=lambda pack: (sum(held[pack.object].values()), pack.object)):
            places |= dict.fromkeys(held[pack.object], pack)
        used = dict.fromkeys(kept, 0)
        for file, pack in places.items():
            used[pack.object] += held[pack.object][file]
        worth = {name: pack for name, pack in kept.items() if 2 * used[name] >= pack.size_bytes}
        if all(name in worth or not used[name] for name in kept):
            # Those that others make needless are not counted, or there would be ever more of them.
            small = {name for name, pack in worth.items() if pack.size_bytes < objects.format.pack_bytes // LEAST_PACK}
            bad = small if len(small) > _SMALL_PACKS else lying(list(worth.values()))
            if not bad:
                return places
            worth = {name: pack for name, pack in kept.items() if name not in bad}
        kept = worth


def holds(objects: Objects, pack: Pack, at_hand: Mapping[bytes, _File], read: Callable[[_File], bytes]) -> bool:
    """Return whether a pack holds what is said of it: then its name is the digest of what is said to be in it.

    Files `at_hand` are `read` here; of the store only the others, and what lies between those that are near.
    """
    try:
        there = _lacking(objects, pack, at_hand)
    except (M5Error, OSError):
        # What cannot be read is not relied on; what is at hand and cannot be read is an error.
        return False
    hasher, offset = objects.hasher(), 0
    for name, size in zip(pack.names, pack.sizes_bytes, strict=True):
        data = read(at_hand[name]) if name in at_hand else there.get(offset, b"")
        if len(data) != size or (name not in at_hand and objects.digest(data) != name.hex()):
            return False
        hasher.update(data)
        offset += size
    return hasher.hexdigest() == pack.object


def _lacking(objects: Objects, pack: Pack, at_hand: Collection[bytes]) -> dict[int, memoryview]:
    """Return, by offset, the files of a pack that are not `at_hand`, as the store has them."""
    wanted: list[tuple[int, int]] = []
    offset = 0
    for name, size in zip(pack.names, pack.sizes_bytes, strict=True):
        wanted += [(offset, size)] if size and name not in at_hand else []
        offset += size
    found: dict[int, memoryview] = {}
    for group in _near(wanted):
        (start, _), (last, size) = group[0], group[-1]
        data = memoryview(_part(objects, pack.object, start, last + size - start))
        found |= {offset: data[offset - start : offset - start + size] for offset, size in group}
    return found


def _part(objects: Objects, digest: Digest, start: int, length: int) -> bytes:
    store = objects.store
    return store.part(key(digest), start, length) if isinstance(store, Near) else store.get(key(digest), start, length)


def _near(wanted: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield parts, each an offset and a length in ascending order, in groups that are read at once."""
    group: list[tuple[int, int]] = []
    for offset, size in wanted:
        if group and offset - sum(group[-1]) > _NEAR_BYTES:
            yield group
            group = []
        group.append((offset, size))
    if group:
        yield group
