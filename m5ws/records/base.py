"""Bases and plain types of all records. No I/O here."""

from typing import Annotated

import msgspec

OBJECT_BYTES = 5 * 2**30
"""More than any object holds: what S3 takes in one PUT."""


# What decoding checks, so that nothing else need doubt it. A record that was decoded can neither name a key outside its
# place, nor claim a size that no machine counts to.
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""Lower-case hex of the store's hash over an object's exact bytes (BLAKE3-256 by default)."""


RunId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


CheckpointName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{10}-[0-9]{4,}\Z")]


OutputsName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{4,}-([0-9]{6,}|final)\Z")]


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


ObjectBytes = Annotated[int, msgspec.Meta(ge=0, le=OBJECT_BYTES)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all persisted records."""


class Sealed(Record, frozen=True, kw_only=True):
    """Base of records that are stored under a name of their own: their bytes end in their own digest (codec.py)."""


class Placed(Sealed, frozen=True, kw_only=True):
    """Base of sealed records that no field of theirs ties to their key; None in those that earlier builds wrote."""

    key: str | None = None
