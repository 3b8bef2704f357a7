"""Records to bytes and back: one encoder, deterministic, for everything that is stored."""

from typing import TypeVar

import msgspec

from m5ws.errors import CorruptObject, UnknownSchema
from m5ws.records import Record

R = TypeVar("R")
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
    except msgspec.MsgspecError as error:
        raise CorruptObject(f"not plain data: {error}") from error


def decode(data: bytes, kind: type[R], what: str = "record") -> R:
    """Return the record in `data`. Raises UnknownSchema for another kind, CorruptObject for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise UnknownSchema(f"{what} is not a known {_tag(kind)}: {error}") from error
    except msgspec.MsgspecError as error:
        raise CorruptObject(f"{what} cannot be decoded: {error}") from error


def _tag(kind: object) -> str:
    config = getattr(kind, "__struct_config__", None)
    return str(config.tag) if config is not None and config.tag else str(kind)
