"""Interfaces of stores: bytes under keys, each key written once. Optional capabilities have their own protocols."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec

from m5ws.errors import UsageError

Buffer = bytes | bytearray | memoryview


class ObjectStat(msgspec.Struct, frozen=True, kw_only=True):
    """One stored object: key, size, and publication time in seconds since the epoch."""

    key: str
    size_bytes: int
    modified_s: float


class ChecksummedStat(ObjectStat, frozen=True, kw_only=True):
    """One stored object, with the algorithm (`CRC64NVME`, `SHA256` …) of the checksum that its server keeps for all its
    bytes.
    """

    checksum: str | None = None


FORMAT = "format"
"""The key of the format record. It exists if and only if the directory or prefix is a store."""
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def checked(key: str) -> str:
    """Return `key`. Raises UsageError if it is not a valid key (docs/format.md), before a store uses it.

    A valid key is relative, and has no characters with a meaning in a shell, a URL or a file system.
    """
    if not key or not _SAFE.issuperset(key) or any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(
            f"not a store key: {key!r}", hint="m5ws writes no such key. Run `m5ws fsck` to find the damaged record."
        )
    return key


class ObjectStore(Protocol):
    """Bytes under keys, each key written once.

    Keys are relative and `/`-separated, with ASCII letters, digits, `.`, `_`, `-`. There is no overwrite: `create` is
    the only way to add data, and the only concurrency primitive (docs/format.md).
    """

    @property
    def url(self) -> str:
        """Address of this store, accepted by `open_store`."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes [start, start+length) of an object; fewer if the object is shorter. Raises NotFound."""

    def create(self, key: str, data: Buffer) -> None:
        """Publish an object durably and completely, or not at all. Raises ObjectExists if the key exists."""

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield every published object with a key that starts with `prefix`, in key order."""

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the next path components after `prefix`, sorted and distinct. `prefix` ends in `/`. Does not list
        deeper levels.
        """

    def delete(self, key: str) -> None:
        """Delete an object; does nothing if it does not exist. Only `gc` calls this method."""

    def stat(self, key: str) -> ObjectStat | None:
        """Return the key, size and time of an object without reading it, or None if it does not exist."""

    def now(self) -> float:
        """Return the time of the store's clock in seconds since the epoch; of this machine's clock if it has none."""


@runtime_checkable
class RegionAware(Protocol):
    """A store in a region, on a server run by others (S3). These checks run before a store is created or joined."""

    def expected_region(self) -> str | None:
        """Return the region for a new store. Raises M5Error if it differs from the configured region."""

    def check_region(self, home_region: str | None) -> str:
        """Return a warning about regions for this machine, or "". Raises M5Error if the bucket is missing or in another
        region.
        """

    def region(self) -> str | None:
        """Return the region that the server reports; None if it reports none. Raises M5Error."""

    def assume_region(self, region: str | None) -> None:
        """Use a remembered `region` instead of a request to the server."""

    def probe(self) -> None:
        """Test that `create` has one winner. Raises M5Error if it has several, or if this user cannot write."""


@runtime_checkable
class ChecksumListing(Protocol):
    """A store on a server that verifies uploads and keeps a checksum of each object (S3).

    A checksum of the server is no proof of content: docs/threat-model.md states its limits.
    """

    def list_with_checksums(self, prefix: str) -> Iterator[ChecksummedStat]:
        """Yield the objects of `list`, each with the algorithm of its whole-object checksum; None if there is none."""


@runtime_checkable
class FileBacked(Protocol):
    """A store that may have objects in files of this machine: a directory or a cache."""

    def descriptor(self, key: str) -> int | None:
        """Return an open descriptor of a file with an object, for reading; the caller closes it.

        None if there is no local file. The bytes are not verified, as with `get`.
        """
