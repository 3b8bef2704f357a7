"""Records to bytes and back: one encoder, deterministic, for everything that is stored.

A `Sealed` record is followed by the digest of its bytes, since the name that it is stored under does not say them: so
a bit that flips in any of them is found when it is read (docs/format.md).
"""

import threading
from functools import cache
from typing import Any, TypeVar, get_args

import blake3
import msgspec

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records.base import Record, Sealed

R = TypeVar("R")
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding raises for bytes that are no msgpack of the kind asked for."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_SEAL_BYTES = 32
_building = threading.Lock()


def encode(record: Record | msgspec.Raw) -> bytes:
    """Return the bytes a record is stored as."""
    data = _encoder.encode(record)
    return sealed(data) if isinstance(record, Sealed) else data


def sealed(data: bytes) -> bytes:
    """Return the bytes of a record with their digest behind them."""
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


def decode(data: bytes, kind: type[R], what: str = "record") -> R:
    """Return the record in `data`. Raises UnknownSchema for another kind, CorruptObject for anything else."""
    if _is_sealed(kind):
        data = _unsealed(data, what)
    try:
        record: R = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        tags = _tags(kind)
        if _said(data) in tags:
            raise CorruptObject(f"{what} breaks the rules of its kind: {error}") from error
        raise UnknownSchema(f"{what} is not a known {' or '.join(tags)}: {error}") from error
    except UNREADABLE as error:
        raise CorruptObject(f"{what} cannot be decoded: {error}") from error
    return record


class _None(msgspec.Struct, tag="none"):
    """Beside another kind it makes that one's tag required, which msgspec does not ask of a kind alone."""


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    # msgspec 0.22 hands what it has built half of a kind to any other thread that asks for it, which then crashes.
    with _building:
        return msgspec.msgpack.Decoder(kind | _None)


class _Tagged(msgspec.Struct):
    type: str | None = None


_tagged = msgspec.msgpack.Decoder(_Tagged)


def _said(data: bytes) -> str | None:
    """Return what kind of record `data` says it is, or None if that cannot be told."""
    try:
        return _tagged.decode(data).type
    except UNREADABLE:
        return None


def _is_sealed(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Sealed)


def _unsealed(data: bytes, what: str) -> bytes:
    record, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    if blake3.blake3(record).digest() != seal:
        raise CorruptObject(
            f"{what} does not have the bytes it was written with",
            hint="It is damaged, or of another version of m5ws. docs/how-to/check-a-store.md says how to mend a store.",
        )
    return record


def _tags(kind: object) -> tuple[str, ...]:
    """Return the tag of a record, or those of a union of records."""
    return tuple(str(one.__struct_config__.tag) for one in get_args(kind) or (kind,))
