"""What a workspace remembers of the stores on servers that it has joined: that they were tried, and their regions.

A text file with one line a store: its URL, and after a blank the region that its server says, `-` for none. It may be
deleted at any time, and costs a request and a race then.
"""

from pathlib import Path

from m5ws.filesystem import write_atomically
from m5ws.store.interface import Homed, ObjectStore

_NO_REGION = "-"


def recall(path: Path, store: ObjectStore) -> None:
    """Tell a store what is remembered of it."""
    if isinstance(store, Homed) and (region := _read(path).get(store.url)):
        store.recall(None if region == _NO_REGION else region)


def join(path: Path, store: ObjectStore) -> None:
    """Try, the first time, that a server keeps what a store depends on, and remember it. Raises as `Homed.probe`."""
    if not isinstance(store, Homed):
        return
    known = _read(path)
    if known.get(store.url):
        return
    if store.url not in known:
        store.probe()
    known[store.url] = store.region() or _NO_REGION
    lines = "".join(f"{url} {region}".rstrip() + "\n" for url, region in known.items())
    write_atomically(path, lines.encode())


def _read(path: Path) -> dict[str, str]:
    """Return regions by URL; one is empty where the line has none."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    found: dict[str, str] = {}
    for url, _, region in (line.partition(" ") for line in lines):
        found[url] = region or found.get(url, "")
    return found
