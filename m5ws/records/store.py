"""Record of a store's format."""

from typing import Annotated, Literal

import msgspec

from m5ws.records.base import OBJECT_BYTES, SealedRecord

_Cut = Annotated[int, msgspec.Meta(ge=1, le=OBJECT_BYTES)]


class Format(SealedRecord, tag="format/3", frozen=True, kw_only=True):
    """A store's `format` object, which is needed to read any other object.

    Tensors are cut into chunks of `chunk_bytes`, large files into chunks of `file_chunk_bytes`. Small files and small
    tensors are joined into packs of at most `pack_bytes`.
    """

    hash: Literal["blake3"] = "blake3"
    chunk_bytes: _Cut = 64 * 2**20
    file_chunk_bytes: _Cut = 16 * 2**20
    pack_bytes: _Cut = 2 * 2**20
    small_bytes: _Cut = 1 * 2**20
    home_region: str | None = None
