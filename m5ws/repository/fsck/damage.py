"""What `fsck` finds."""

from typing import Literal

import msgspec

Kind = Literal["corrupt", "truncated", "missing", "dangling", "broken-chain", "unreadable", "foreign", "misplaced"]

Trouble = tuple[Kind, str]
"""What is wrong with a thing, and the words for it."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One damaged or missing thing: its store key, what is wrong, and the snapshots and runs that need it."""

    kind: Kind
    key: str
    detail: str
    harms: tuple[str, ...] = ()


class Vouched(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that were not read, since the store's server vouches for them by a `checksum`.

    `named`: the checksum is the store's own hash, and was compared with each object's name.
    """

    checksum: str
    named: bool
    objects: int
    size_bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `check` looked at and found.

    `read_objects` were read whole, `vouched` ones not; `distrusted` says that the server vouched for a damaged one, so
    that no object was taken on its word. `unreachable` counts objects that nothing names.
    """

    clean: bool
    objects: int
    size_bytes: int
    read_objects: int
    read_bytes: int
    vouched: tuple[Vouched, ...]
    distrusted: bool
    snapshots: int
    runs: int
    unreachable: int
    damage: tuple[Damage, ...]
