"""Where bytes live. One contract (`ports.ObjectStore`), one conformance suite in tests/contract."""

from pathlib import Path

from m5ws.errors import UsageError
from m5ws.ports import ObjectStore
from m5ws.store.local import LocalStore


def open_store(url: str) -> ObjectStore:
    """Return the store at `url`, a directory path or file:// URL. Raises UsageError for another scheme."""
    if url.startswith("file://"):
        return LocalStore(Path(url.removeprefix("file://")))
    if "://" in url:
        raise UsageError(f"no store for {url!r}", hint="A store is a directory: give its path.")
    return LocalStore(Path(url).absolute())
