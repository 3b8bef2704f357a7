"""Records to bytes and back: one encoder, deterministic, for everything that is stored."""

from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records import Record

R = TypeVar("R")
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding raises for bytes that are no msgpack of the kind asked for."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def encode(record: Record | msgspec.Raw) -> bytes:
    """Return the bytes a record is stored as."""
    return _encoder.encode(record)


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
    return msgspec.msgpack.Decoder(kind | _None)


class _Tagged(msgspec.Struct):
    type: str | None = None


def _said(data: bytes) -> str | None:
    """Return what kind of record `data` says it is, or None if that cannot be told."""
    try:
        return msgspec.msgpack.decode(data, type=_Tagged).type
    except UNREADABLE:
        return None


def _tags(kind: object) -> tuple[str, ...]:
    """Return the tag of a record, or those of a union of records."""
    return tuple(str(one.__struct_config__.tag) for one in get_args(kind) or (kind,))
