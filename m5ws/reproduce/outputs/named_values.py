"""Values by unique names, with the exact text of each."""

import datetime as dt
import hashlib
from collections.abc import Iterable
from typing import TypeVar

from m5ws.records import exact

T = TypeVar("T")
_SHOWN_BYTES = 64


def unique(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return named values. Raises ValueError for a repeated name, whose first value would not be compared."""
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"duplicate name {name!r}")
        values[name] = value
    return values


def exact_text(value: object) -> str:
    """Return the exact text of a plain value. Raises ValueError for any other type."""
    if isinstance(value, float):
        return exact.encode(value)
    if isinstance(value, (bytes, bytearray)) and len(value) > _SHOWN_BYTES:
        return f"{len(value)} bytes {hashlib.blake2b(value, digest_size=32).hexdigest()}"
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if value is None or isinstance(value, (bool, int, str, bytes, bytearray, dict, list, tuple)):
        return repr(value)
    if isinstance(value, complex):
        return f"{exact.encode(value.real)} {exact.encode(value.imag)}"
    raise ValueError(f"unsupported type {type(value).__qualname__}")
