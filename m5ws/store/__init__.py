"""Storage of bytes under keys. One contract (`ObjectStore`), one conformance suite in tests/contract.

A URL is enough to open a store: `url_of` puts the options of an S3 store into the URL's query. Launched processes and
followers therefore open the same store.
"""

from pathlib import Path

from m5ws.config.settings import StoreOptions
from m5ws.errors import MissingExtra, UsageError
from m5ws.store.interface import ObjectStore
from m5ws.store.local import LocalStore


def open_store(url: str, options: StoreOptions | None = None) -> ObjectStore:
    """Return the store at `url`: a directory path, a file:// or an s3:// URL. Makes no request.

    Raises UsageError for another scheme, and MissingExtra if S3's libraries are not installed.
    """
    if url.startswith("file://"):
        return LocalStore(Path(url.removeprefix("file://")))
    if url.startswith("s3://"):
        return _open_s3(url, options)
    if "://" in url:
        raise UsageError(f"unknown kind of store: {url!r}", hint="A store is a directory, or s3://bucket/prefix.")
    return LocalStore(Path(url).absolute())


def url_of(url: str, options: StoreOptions) -> str:
    """Return a URL that opens the same store without options. Raises UsageError."""
    if not url.startswith("s3://"):
        return url
    from m5ws.store.s3.location import parse

    return parse(url, options).url


def _open_s3(url: str, options: StoreOptions | None) -> ObjectStore:
    from m5ws.store.s3.location import parse

    location = parse(url, options)
    try:
        from m5ws.store.s3.store import S3Store
    except ModuleNotFoundError as error:
        raise MissingExtra("a store in S3", "s3") from error
    return S3Store(location)
