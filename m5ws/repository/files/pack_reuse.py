"""Choice of the existing packs that a new tree reuses."""

from collections.abc import Collection, Sequence

from m5ws.records.tree import Pack
from m5ws.repository import presence
from m5ws.repository.objects import Objects

LEAST_PACK = 4
"""Packs below this fraction of `Format.pack_bytes` (1/4) are small."""
_SMALL_PACKS = 16
"""Number of small packs that are reused. If there are more, they are repacked."""


def select_packs(objects: Objects, packs: Sequence[Pack], wanted: Collection[bytes]) -> dict[bytes, Pack]:
    """Return, by file, the existing `packs` that contain some of the `wanted` files and are worth reusing.

    A pack with less than half of its bytes in use is not worth it, nor is a small one if there are many. So reading a
    tree costs at most twice its bytes, and about as many requests as after a full repack. The order of `packs` does not
    matter.
    """
    held = {
        pack.object: {n: s for n, s in zip(pack.names, pack.sizes_bytes, strict=True) if n in wanted} for pack in packs
    }
    kept = {pack.object: pack for pack in packs if 0 < pack.size_bytes <= 2 * sum(held[pack.object].values())}
    sizes = {name: pack.size_bytes for name, pack in kept.items()}
    for name in presence.missing(objects, sizes, lenient=True) if sizes else ():
        del kept[name]
    while True:
        # A file in several packs counts for the pack with the most wanted bytes. The others may then not be worth
        # reusing.
        places: dict[bytes, Pack] = {}
        for pack in sorted(kept.values(), key=lambda pack: (sum(held[pack.object].values()), pack.object)):
            places |= dict.fromkeys(held[pack.object], pack)
        used = dict.fromkeys(kept, 0)
        for file, pack in places.items():
            used[pack.object] += held[pack.object][file]
        worth = {name: pack for name, pack in kept.items() if 2 * used[name] >= pack.size_bytes}
        if all(name in worth or not used[name] for name in kept):
            # Packs that the others make superfluous are not counted; otherwise their number would grow for ever.
            small = {name for name, pack in worth.items() if pack.size_bytes < objects.format.pack_bytes // LEAST_PACK}
            if len(small) <= _SMALL_PACKS:
                return places
            worth = {name: pack for name, pack in kept.items() if name not in small}
        kept = worth
