"""A store in an S3 bucket: one conditional PUT per object, obstore for bytes, boto3 for everything else.

An object appears by `PUT` with `If-None-Match: *`, which one writer wins. There is no copy, rename or completion later.
Every request goes through `Retrier.call`. The first attempt to transfer bytes uses obstore, which is several times
cheaper. Every further attempt uses boto3, which returns an error code.
"""

from collections.abc import Iterator
from contextlib import suppress

from m5ws.errors import NotFound, ObjectExists
from m5ws.store.interface import Buffer, ChecksummedStat, ObjectStat, checked
from m5ws.store.s3 import probe as s3_probe
from m5ws.store.s3.clients import Connection
from m5ws.store.s3.errors import (
    AccessDenied,
    NoSuchKey,
    PreconditionFailed,
    RangeNotSatisfiable,
    WrongRegion,
    wrong_region,
)
from m5ws.store.s3.listing import Listing
from m5ws.store.s3.location import Location
from m5ws.store.s3.retry import Retrier, RetryPolicy
from m5ws.store.s3.transfer import LARGEST_BYTES, Transfer, Upload


class S3Store:
    """`ObjectStore`, `RegionAware` and `ChecksumListing` on a bucket and a prefix.

    Makes no request before the first call.
    """

    def __init__(self, location: Location, patience: RetryPolicy | None = None) -> None:
        self.location = location
        self.connection = Connection(location)
        self.requests = Retrier(location.url, patience or RetryPolicy(), self.connection.renew)
        self._transfer = Transfer(self.connection)
        self._listing = Listing(self.connection, self.requests)
        self._probed = False

    @property
    def url(self) -> str:
        return self.location.url

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._path(key)
        try:
            if length == 0:
                self.requests.call(f"looking for {key}", lambda number: self._transfer.stat(path, by_boto3=number > 0))
                return b""
            return self.requests.call(
                f"reading {key}",
                lambda number: self._transfer.read(path, start, length, by_boto3=number > 0),
                LARGEST_BYTES if length is None else length,
            )
        except NoSuchKey:
            raise NotFound(f"{key} is not in the store {self.url}") from None
        except RangeNotSatisfiable:
            return b""

    def create(self, key: str, data: Buffer) -> None:
        path, upload = self._path(key), Upload(memoryview(data).cast("B"))
        if self._created(path, upload, by_boto3=False):
            return
        # obstore also reports a conflict (409) as an existing key. Then the object is missing, and boto3 gets the code.
        existing = self.stat(key)
        if existing is None and self._created(path, upload, by_boto3=True):
            return
        raise ObjectExists(key, existing.size_bytes if existing is not None else None)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        return self._listing.walk(prefix)

    def list_with_checksums(self, prefix: str) -> Iterator[ChecksummedStat]:
        return self._listing.walk(prefix, checksums=True)

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._listing.names(self.location.prefix + prefix)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with suppress(NoSuchKey):
            self.requests.call(f"deleting {key}", lambda _: self._transfer.delete(path))

    def stat(self, key: str) -> ObjectStat | None:
        path = self._path(key)
        try:
            size_bytes, modified_s = self.requests.call(
                f"looking for {key}", lambda number: self._transfer.stat(path, by_boto3=number > 0)
            )
        except NoSuchKey:
            return None
        return ObjectStat(key=key, size_bytes=size_bytes, modified_s=modified_s)

    def now(self) -> float:
        return self.connection.now()

    def region(self) -> str | None:
        return self.requests.call("finding the bucket", lambda _: self.connection.bucket_region)

    def assume_region(self, region: str | None) -> None:
        self.connection.remember(region)

    def expected_region(self) -> str | None:
        # The bucket of a new store may differ from the remembered bucket.
        self.connection.forget()
        region = self.region()
        wanted = self.location.options.region or self.connection.here
        if region and wanted and region != wanted:
            raise wrong_region(self.location, region, wanted)
        return region or self.location.options.region

    def check_region(self, home_region: str | None) -> str:
        region = self.region()
        asked, local = self.location.options.region, self.connection.here
        for value, source in ((region, "the bucket is in"), (asked, "m5ws.toml has")):
            if home_region and value and value != home_region:
                raise WrongRegion(
                    f"the home region of the store at {self.url} is {home_region}, but {source} {value}",
                    hint="Check the bucket. A store that was copied to another region has its own home region.",
                )
        if home_region and local and local != home_region:
            return (
                f"the store's home region is {home_region}, but this machine is in {local}: all transfers cross regions"
            )
        return ""

    def probe(self) -> None:
        if not self._probed:
            # A user who may only read joins a store without this test.
            with suppress(AccessDenied):
                s3_probe.race(self)
            self._probed = True

    def _path(self, key: str) -> str:
        return self.location.prefix + checked(key)

    def _created(self, path: str, upload: Upload, *, by_boto3: bool) -> bool:
        """Put an object. Return True if the existing object is from this attempt or from an earlier attempt."""
        try:
            self.requests.call(
                f"writing {path}",
                lambda number: self._transfer.write(path, upload, by_boto3=by_boto3 or number > 0),
                upload.data.nbytes,
            )
        except PreconditionFailed:
            return upload.doubtful and self._holds(path, upload)
        return True

    def _holds(self, path: str, upload: Upload) -> bool:
        """Return True if an object has the bytes of `upload`, after an attempt without a response.

        Equal bytes of another writer count as ours: they are indistinguishable. Without TLS a read can be damaged, so a
        mismatch counts only after two equal reads.
        """
        current: bytes | None = None
        try:
            while True:
                previous, current = (
                    current,
                    self.requests.call(
                        f"reading {path}", lambda number: self._transfer.read(path, 0, None, by_boto3=number > 0)
                    ),
                )
                if upload.equals(current) or current == previous:
                    return upload.equals(current)
        except NoSuchKey:
            return False
