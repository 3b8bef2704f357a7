"""Files of other programs below a prefix in S3: listed, with their versions, and downloaded. Nothing is written.

Every request goes through `Retrier.call`, so an expired credential gets a new client. A download that fails begins
again. Keys may have any characters, unlike the keys of a store.
"""

import base64
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import msgspec

from m5ws.errors import CorruptObject, NotFound
from m5ws.store.cache.files import Sink
from m5ws.store.s3.clients import Connection
from m5ws.store.s3.errors import NoSuchKey, TransientError
from m5ws.store.s3.location import parse
from m5ws.store.s3.retry import Retrier, RetryPolicy
from m5ws.store.traffic import traffic

_BLOCK_BYTES = 2**20
_NO_VERSION = "null"
"""S3's version of an object in a bucket without versions."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The current version of an object. `key` comes after the prefix; `version` is None without versioning."""

    key: str
    size_bytes: int
    version: str | None


class _NotWritten(Exception):
    """The disk of this machine failed, and not the download."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class S3Files:
    """The objects below s3://bucket/prefix, with the options of a store in the query. Makes no request at first."""

    def __init__(self, url: str, patience: RetryPolicy | None = None) -> None:
        split = urlsplit(url)
        bucket = parse(split._replace(path="").geturl())
        prefix = split.path.strip("/")
        self.location = msgspec.structs.replace(bucket, prefix=f"{prefix}/" if prefix else "")
        self._connection = Connection(self.location)
        self._requests = Retrier(self.location.url, patience or RetryPolicy(), self._connection.renew)

    @property
    def here(self) -> str | None:
        """The region that this machine is configured for; None if there is none."""
        return self._connection.here

    def url_with_region(self) -> str:
        """Return the URL with the region of the bucket, if its server reports a region."""
        region = self._requests.call("finding the bucket", lambda _: self._connection.bucket_region)
        options = msgspec.structs.replace(self.location.options, region=region or self.location.options.region)
        return msgspec.structs.replace(self.location, options=options).url

    def versions(self) -> Iterator[Version]:
        """Yield the current version of every object, in the order of keys, without the keys that mark folders."""
        more: dict[str, str] = {}
        while True:
            asked = {"Bucket": self.location.bucket, "Prefix": self.location.prefix, **more}
            page = self._ask("s3:ListBucketVersions", None, _request("list_object_versions", asked))
            for item in page.get("Versions", ()):
                key = item["Key"].removeprefix(self.location.prefix)
                if item["IsLatest"] and key and not key.endswith("/"):
                    version = item["VersionId"] if item["VersionId"] != _NO_VERSION else None
                    yield Version(key=key, size_bytes=item["Size"], version=version)
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"]}
            if marker := page.get("NextVersionIdMarker"):
                more["VersionIdMarker"] = marker

    def sha256(self, object_: Version) -> str | None:
        """Return the SHA-256 of a whole object in hex, if the server has verified and kept it. Raises NotFound."""
        head = self._ask(
            "s3:GetObject",
            object_.key,
            lambda client: client.head_object(**self._named(object_.key, object_.version), ChecksumMode="ENABLED"),
        )
        checksum = head.get("ChecksumSHA256", "")
        # A checksum of the parts of an upload ends with their number.
        return base64.b64decode(checksum).hex() if checksum and "-" not in checksum else None

    def sizes(self, folder: str) -> list[tuple[str, int]]:
        """Return the keys and sizes of all objects below a folder."""
        listed: list[tuple[str, int]] = []
        more: dict[str, str] = {}
        asked = {"Bucket": self.location.bucket, "Prefix": f"{self.location.prefix}{folder}/"}
        while True:
            page = self._ask("s3:ListBucket", None, _request("list_objects_v2", asked | more))
            keys = ((item["Key"].removeprefix(self.location.prefix), item["Size"]) for item in page.get("Contents", ()))
            listed += keys
            if not page.get("IsTruncated"):
                return listed
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def download(self, key: str, version: str | None, size_bytes: int, begin: Callable[[], Sink]) -> None:
        """Send an object to a new sink, and to another new sink for each retry.

        Raises NotFound, CorruptObject after two different answers, OSError of this machine's disk, M5Error.
        """
        damaged: list[CorruptObject] = []
        place = f"s3://{self.location.bucket}/{self.location.prefix}{key}" + (f", version {version}" if version else "")

        def attempt(client: Any) -> None:
            response = client.get_object(**self._named(key, version))
            sink = begin()
            with closing(response["Body"]) as body:
                while block := body.read(_BLOCK_BYTES):
                    traffic.add(*self._connection.route, read=len(block))
                    try:
                        sink.write(block)
                    except OSError as error:
                        raise _NotWritten(error) from error
            try:
                sink.finish(place)
            except CorruptObject as error:
                # Without TLS, the network may have damaged the bytes.
                damaged.append(error)
                if len(damaged) > 1:
                    raise
                raise TransientError(str(error)) from error

        try:
            self._ask("s3:GetObject", key, attempt, size_bytes)
        except _NotWritten as error:
            raise error.error from None

    def _named(self, key: str, version: str | None) -> dict[str, str]:
        named = {"Bucket": self.location.bucket, "Key": self.location.prefix + key}
        return named | ({"VersionId": version} if version else {})

    def _ask(self, action: str, key: str | None, ask: Callable[[Any], Any], size_bytes: int = 0) -> Any:
        """Return the result of a request. Raises NotFound, StoreError."""
        path = self.location.prefix + (key or "")
        try:
            what = f"reading {key}" if key is not None else f"listing {path}"
            return self._requests.call(what, lambda _: self._connection.call(action, path, ask), size_bytes)
        except NoSuchKey:
            raise NotFound(f"s3://{self.location.bucket}/{path} does not exist in the pinned version") from None


def _request(operation: str, asked: dict[str, str]) -> Callable[[Any], Any]:
    return lambda client: getattr(client, operation)(**asked)
