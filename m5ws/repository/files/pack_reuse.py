"""The packs of a store that are left as they are when a tree is written."""

from collections.abc import Collection, Sequence

from m5ws.records.tree import Pack
from m5ws.repository import presence
from m5ws.repository.objects import Objects

LEAST_PACK = 4
"""A pack below a fourth of `Format.pack_bytes` is small."""
_SMALL_PACKS = 16
"""So many small packs are borne with: more are joined."""


def chosen(objects: Objects, packs: Sequence[Pack], wanted: Collection[bytes]) -> dict[bytes, Pack]:
    """Return, by file, those of `packs` that are in the store, hold some of the `wanted` and are worth keeping.

    A pack of which less than half is used is not, nor is a small one if there are many: reading a tree costs at most
    twice its bytes, and about as many requests as if all of it were packed anew. The order of `packs` does not matter.
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
            if len(small) <= _SMALL_PACKS:
                return places
            worth = {name: pack for name, pack in kept.items() if name not in small}
        kept = worth
