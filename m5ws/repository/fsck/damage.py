"""Results of `fsck`."""

from typing import Literal

import msgspec

Kind = Literal["corrupt", "truncated", "missing", "dangling", "broken-chain", "unreadable", "foreign", "misplaced"]

Trouble = tuple[Kind, str]
"""The kind of damage, and its description."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged or missing object or reference: its store key, the damage, and the snapshots and runs that
    need it.
    """

    kind: Kind
    key: str
    detail: str
    harms: tuple[str, ...] = ()


class ChecksumOnly(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that were not read, because the store's server keeps a `checksum` of each."""

    checksum: str
    objects: int
    size_bytes: int


class FsckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a check, and the damage found.

    `read_objects` were read completely, the `vouched` objects not. `distrusted` is True if the server had a checksum of
    a damaged object; then no checksum was trusted. `unreachable` counts objects without a reference.
    """

    clean: bool
    objects: int
    size_bytes: int
    read_objects: int
    read_bytes: int
    vouched: tuple[ChecksumOnly, ...]
    distrusted: bool
    snapshots: int
    runs: int
    unreachable: int
    damage: tuple[Damage, ...]
