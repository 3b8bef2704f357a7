"""Bases and plain types of all records. No I/O here."""

from typing import Annotated

import msgspec

OBJECT_BYTES = 5 * 2**30
"""Upper bound of an object's size: the limit of S3 for one PUT."""


# Decoding checks these types: no decoded record names a key outside its prefix, or has an impossible size.
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""Lower-case hex of the store's hash over an object's exact bytes (BLAKE3-256 by default)."""


RunId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


CheckpointName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{10}-[0-9]{4,}\Z")]


OutputsName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{4,}-[0-9]+-([0-9]{6,}|final)\Z")]


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


ObjectBytes = Annotated[int, msgspec.Meta(ge=0, le=OBJECT_BYTES)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all persisted records."""


class SealedRecord(Record, frozen=True, kw_only=True):
    """Base of records that are stored under another name than their digest: their bytes end with it (codec.py)."""


class KeyedRecord(SealedRecord, frozen=True, kw_only=True):
    """Base of sealed records whose other fields do not bind them to a key. `key` is None until they are stored."""

    key: str | None = None
