"""Listing of a prefix, in pages of at most 1,000 keys a request. Each page is retried by itself.

obstore needs a sixteenth of boto3's CPU time for a page, which matters in a store of a million objects. obstore lists
whole folders only, so the rest of a prefix is compared here. A page that fails in obstore is requested by boto3.
"""

import datetime as dt
from collections.abc import Iterator
from functools import partial
from typing import Any

import obstore

from m5ws.store.interface import ChecksummedStat
from m5ws.store.s3.clients import Connection
from m5ws.store.s3.retry import Retrier
from m5ws.store.s3.transfer import translated

_PAGE = 1000


class Listing:
    """Lists a bucket in key order. Keys come after the prefix of the store."""

    def __init__(self, connection: Connection, requests: Retrier) -> None:
        self._connection = connection
        self._requests = requests
        self._prefix = connection.location.prefix

    def walk(self, prefix: str, *, checksums: bool = False) -> Iterator[ChecksummedStat]:
        """Yield every object with a key that starts with `prefix`, in order. With `checksums`, by boto3."""
        folder, after, more = self._prefix + prefix[: prefix.rfind("/") + 1], "", True
        while more:
            page = self._requests.call(f"listing {folder}", partial(self._page, folder, after, checksums))
            yield from (listed for listed in page if listed.key.startswith(prefix))
            more = len(page) == _PAGE
            after = self._prefix + page[-1].key if page else after

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the next path components after `folder`, sorted. `folder` is empty or ends in `/`."""
        paths = self._requests.call(f"listing {folder}", partial(self._names, folder))
        return tuple(sorted({path.removeprefix(folder).rstrip("/") for path in paths} - {""}))

    def _page(self, folder: str, after: str, by_boto3: bool, number: int) -> list[ChecksummedStat]:
        """Return the next page. It is full if there may be more."""
        if by_boto3 or number:
            page = self._ask(Prefix=folder, StartAfter=after, MaxKeys=_PAGE)
            if page.get("IsTruncated") and len(page.get("Contents", ())) < _PAGE:
                return self._filled(page, folder)
            return self._listed(page)
        client = self._connection.data(0, reading=True)
        with translated():
            stream = obstore.list(client, folder.rstrip("/") or None, offset=after or None, chunk_size=_PAGE)
            return [self._stat(item["path"], item["size"], item["last_modified"]) for item in next(iter(stream), ())]

    def _filled(self, page: Any, folder: str) -> list[ChecksummedStat]:
        """Return a page that a server cut short, filled up by further requests."""
        listed = self._listed(page)
        while page.get("IsTruncated") and len(listed) < _PAGE:
            left = _PAGE - len(listed)
            page = self._ask(Prefix=folder, ContinuationToken=page["NextContinuationToken"], MaxKeys=left)
            listed += self._listed(page)
        return listed

    def _names(self, folder: str, number: int) -> list[str]:
        if number:
            return self._names_by_boto3(folder)
        client = self._connection.data(0, reading=True)
        with translated():
            listing = obstore.list_with_delimiter(client, folder.rstrip("/") or None)
            return [*listing["common_prefixes"], *(item["path"] for item in listing["objects"])]

    def _names_by_boto3(self, folder: str) -> list[str]:
        paths: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = self._ask(Prefix=folder, Delimiter="/", **more)
            paths += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            paths += [item["Key"] for item in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return paths
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, **asked: Any) -> Any:
        return self._connection.call("s3:ListBucket", None, lambda client: self._list_objects(client, asked))

    def _list_objects(self, client: Any, asked: dict[str, Any]) -> Any:
        """Return a page after a check of its key count: boto3 reads a response without a body as an empty page."""
        bucket = self._connection.location.bucket
        page = client.list_objects_v2(Bucket=bucket, **asked)
        held = len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ()))
        if page.get("Name") != bucket or page["KeyCount"] != held:
            raise ValueError(f"a page of {page.get('KeyCount')} keys has {held}")
        return page

    def _listed(self, page: Any) -> list[ChecksummedStat]:
        return [
            self._stat(item["Key"], item["Size"], item["LastModified"], _checksum(item))
            for item in page.get("Contents", ())
        ]

    def _stat(self, path: str, size_bytes: int, modified: dt.datetime, checksum: str | None = None) -> ChecksummedStat:
        key = path.removeprefix(self._prefix)
        return ChecksummedStat(key=key, size_bytes=size_bytes, modified_s=modified.timestamp(), checksum=checksum)


def _checksum(item: Any) -> str | None:
    """Return the algorithm of a whole object's checksum, or None.

    A checksum of the parts of an upload does not count.
    """
    algorithms = sorted(item.get("ChecksumAlgorithm", ()), key=lambda name: (name != "SHA256", name))
    return algorithms[0] if algorithms and item.get("ChecksumType") == "FULL_OBJECT" else None
