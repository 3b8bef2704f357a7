"""Interface of stores: bytes under keys, written once. Optional parts are protocols of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

Buffer = bytes | bytearray | memoryview


class ObjectStat(msgspec.Struct, frozen=True, kw_only=True):
    """One stored object: its key, its size and when it was published (seconds since the epoch)."""

    key: str
    size_bytes: int
    modified_s: float


class VouchedStat(ObjectStat, frozen=True, kw_only=True):
    """One stored object, and the checksum (`CRC64NVME`, `SHA256` …) by which its server vouches for all its bytes."""

    checksum: str | None = None


FORMAT = "format"
"""The key that is there exactly where there is a store."""


class ObjectStore(Protocol):
    """Bytes under keys, written once.

    Keys are relative, `/`-separated, of ASCII letters, digits, `.`, `_`, `-`. There is no overwrite:
    `create` is the only way in and the only concurrency primitive (docs/format.md).
    """

    @property
    def url(self) -> str:
        """Where this store is, in the form `open_store` takes it."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes [start, start+length) of an object; fewer when it is shorter. Raises NotFound."""

    def create(self, key: str, data: Buffer) -> None:
        """Publish an object, durable and whole, or not at all. Raises ObjectExists if the key is taken."""

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield every published object whose key starts with `prefix`, in key order."""

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the distinct next path components after `prefix`, which ends in `/`, sorted: no walk."""

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is no error. Only `gc` calls it."""

    def stat(self, key: str) -> ObjectStat | None:
        """Return what is known of an object without reading it, or None if it is absent."""


@runtime_checkable
class Homed(Protocol):
    """A store that is in a region, on a server that others run (S3): what is asked before it is made or joined."""

    def home(self) -> str | None:
        """Return the region of a store that is to be made. Raises M5Error if it is not the one configured."""

    def visit(self, home_region: str | None) -> str:
        """Return what a person should know who works from here, or "". Raises M5Error if it is not there at all."""

    def region(self) -> str | None:
        """Return the region that the server is in, as it says; None if it says none. Raises M5Error."""

    def recall(self, region: str | None) -> None:
        """Take the `region` of an earlier time for what the server says, which then need not be asked."""

    def probe(self) -> None:
        """Try that `create` lets one writer win. Raises M5Error if it does not, or if this user may not write."""


@runtime_checkable
class Vouching(Protocol):
    """A store on a server that checked what arrived, and keeps a checksum of it by which it watches over it (S3).

    Its word is no proof: docs/threat-model.md says what it is good for.
    """

    def vouched(self, prefix: str) -> Iterator[VouchedStat]:
        """Yield what `list` does, with what the server vouches by for a whole object; None where it does not."""

    def sha256(self, key: str) -> str | None:
        """Return the SHA-256, in hex, that the server keeps of a whole object, or None. Raises NotFound."""


@runtime_checkable
class OnDisk(Protocol):
    """What a store can do besides, whose objects may lie in files of this machine: a directory, a cache."""

    def descriptor(self, key: str) -> int | None:
        """Return an open descriptor of a file that holds an object, for reading; the caller closes it.

        None if there is no such file here. The bytes are as unverified as those of `get`.
        """


@runtime_checkable
class Flowing(Protocol):
    """What a store can do besides, whose objects come from far away: hand one on as it arrives, never held whole."""

    def flow(self, key: str, sink: Callable[[Buffer], object]) -> None:
        """Call `sink` with the bytes of an object, in order, each once; they are as unverified as those of `get`.

        Raises NotFound, and what `sink` raises.
        """


@runtime_checkable
class Near(Protocol):
    """What a store can do besides, that keeps copies of objects on this machine's disk: a cache."""

    @property
    def copies(self) -> tuple[Path, int]:
        """The directory of the copies, and how many bytes they may have together."""

    @property
    def capacity_bytes(self) -> int:
        """How much it keeps for certain before it drops what was used least lately."""

    def fresh(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """As `get`, from the store itself, whatever the copy is: it is dropped. Raises NotFound."""

    def held(self, key: str) -> int | None:
        """Return the size of an object's copy, which counts as used now, or None if there is none."""
