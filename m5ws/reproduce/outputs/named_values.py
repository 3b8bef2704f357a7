"""Values by unique names, and the exact text of each."""

import datetime as dt
import hashlib
from collections.abc import Iterable
from typing import TypeVar

from m5ws.records import exact

T = TypeVar("T")
_SHOWN_BYTES = 64


def unique(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return named values. Raises ValueError if two have one name: one of them would not be compared."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        found[name] = value
    return found


def text(value: object) -> str:
    """Return a plain value's exact text. Raises ValueError for anything else."""
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
    raise ValueError(f"a value of type {type(value).__qualname__}")
