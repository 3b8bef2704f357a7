"""S3 stores that a workspace has tested before, with their regions.

A text file with one line per store: its URL, a space, and the region that its server reports (`-` for none). The file
may be deleted at any time; the next command then tests the stores again.
"""

from pathlib import Path

from m5ws.filesystem import write_atomically
from m5ws.store.interface import ObjectStore, RegionAware

_NO_REGION = "-"


def recall(path: Path, store: ObjectStore) -> None:
    """Pass the remembered region to a store."""
    if isinstance(store, RegionAware) and (region := _read(path).get(store.url)):
        store.assume_region(None if region == _NO_REGION else region)


def join(path: Path, store: ObjectStore) -> None:
    """Test a store on first use, and remember the result. Raises as `RegionAware.probe`."""
    if not isinstance(store, RegionAware):
        return
    known = _read(path)
    if store.url not in known:
        store.probe()
        known[store.url] = store.region() or _NO_REGION
        write_atomically(path, "".join(f"{url} {region}\n" for url, region in known.items()).encode())


def _read(path: Path) -> dict[str, str]:
    """Return the regions by URL, of complete lines."""
    try:
        words = map(str.split, path.read_text().splitlines())
    except FileNotFoundError:
        return {}
    return {line[0]: line[1] for line in words if len(line) == 2}
