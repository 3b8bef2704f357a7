"""Records to bytes and back: one deterministic encoder for all stored records.

The digest of its bytes follows a `SealedRecord`, because its key is not its digest. So reading detects any flipped bit
(docs/format.md).
"""

import threading
import zlib
from functools import cache
from typing import Any, TypeVar, get_args

import blake3
import msgspec

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records.base import Record, SealedRecord

R = TypeVar("R")
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Exceptions of decoding, for bytes that are not msgpack of the requested kind."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_SEAL_BYTES = 32
_building = threading.Lock()


def encode(record: Record | msgspec.Raw) -> bytes:
    """Return the stored bytes of a record."""
    data = _encoder.encode(record)
    return sealed(data) if isinstance(record, SealedRecord) else data


def sealed(data: bytes) -> bytes:
    """Return the bytes of a record, followed by their digest."""
    return data + blake3.blake3(data).digest()


def encode_plain(value: object) -> bytes:
    """Return plain data (None, bool, int, float, str, bytes, list, dict) as msgpack, deterministically."""
    return _encoder.encode(value)


def decode_plain(data: bytes) -> object:
    """Return plain data from msgpack. Raises CorruptObject."""
    try:
        return msgspec.msgpack.decode(data, strict=True)
    except UNREADABLE as error:
        raise CorruptObject(f"not plain data: {error}") from error


def compress(data: bytes) -> bytes:
    """Return a zlib stream of `data`."""
    return zlib.compress(data)


def expand(compressed: bytes, size_bytes: int, name: str) -> bytes:
    """Return the `size_bytes` in a zlib stream, without more memory than that. Raises CorruptObject.

    `name` is for the message.
    """
    stream = zlib.decompressobj()
    try:
        # One byte more than expected: the stream is then read to its end, and a longer stream is detected.
        data = stream.decompress(compressed, size_bytes + 1)
    except zlib.error as error:
        raise CorruptObject(f"{name} cannot be expanded: {error}") from error
    if len(data) != size_bytes or not stream.eof or stream.unused_data:
        raise CorruptObject(f"{name} does not end after {size_bytes} bytes")
    return data


def decode(data: bytes, kind: type[R], name: str = "record") -> R:
    """Return the record in `data`. Raises UnknownSchema for another kind, CorruptObject for other bytes.

    `name` is for the message.
    """
    if _is_sealed(kind):
        data = unsealed(data, name)
    try:
        record: R = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        tags = tuple(str(member.__struct_config__.tag) for member in get_args(kind) or (kind,))
        if _tag(data) in tags:
            raise CorruptObject(f"{name} breaks the rules of its kind: {error}") from error
        raise UnknownSchema(f"{name} is not a known {' or '.join(tags)}: {error}") from error
    except UNREADABLE as error:
        raise CorruptObject(f"{name} cannot be decoded: {error}") from error
    return record


class _None(msgspec.Struct, tag="none"):
    """Second member of a union. msgspec requires a record's tag in unions alone."""


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    # In msgspec 0.22 another thread can get the decoder of a kind before it is complete, and then crashes.
    with _building:
        return msgspec.msgpack.Decoder(kind | _None)


class _Tagged(msgspec.Struct):
    type: str | None = None


_tagged = msgspec.msgpack.Decoder(_Tagged)


def _tag(data: bytes) -> str | None:
    """Return the tag of the record in `data`, None if it has none."""
    try:
        return _tagged.decode(data).type
    except UNREADABLE:
        return None


def _is_sealed(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, SealedRecord)


def unsealed(data: bytes, name: str) -> bytes:
    """Return the bytes that were `sealed`. Raises CorruptObject with `name`."""
    record, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    if blake3.blake3(record).digest() != seal:
        raise CorruptObject(
            f"checksum mismatch: {name} does not have the bytes that were written",
            hint="The record is damaged, or another version of m5ws wrote it. See docs/how-to/check-a-store.md.",
        )
    return record
