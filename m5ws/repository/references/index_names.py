"""Facts in the names of empty keys, the newest first: one listing reads the facts of many runs or snapshots.

A key is `index/<list>/<order>-<id>/<kind>.<check>.<number>-<count>.<piece>`. `<order>` falls with the time of creation.
The pieces of a fact together are msgpack, compressed, in URL-safe base64. `<check>` is a digest of id, kind and pieces.
"""

import base64
import binascii
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec

from m5ws.errors import ObjectExists
from m5ws.records import codec
from m5ws.repository import concurrency
from m5ws.store.interface import ObjectStore

PREFIX = "index/"
_PIECE_CHARACTERS = 200
"""With the rest of the name, less than the 255 bytes of a file name."""
_MOST_PIECES = 32
_MOST_BYTES = 2**18
"""Limit of a decoded fact: a small compressed name may expand to more than memory holds."""
_LAST_MS = 10**14 - 1
_NAME = re.compile(r"([a-z]+)\.([0-9a-f]{16})\.([0-9]{2})-([0-9]{2})\.([\w-]*)", re.ASCII)


def folder(kind: str, identifier: str, time_s: float) -> str | None:
    """Return the prefix of the keys about a run or snapshot; None for a time that is no time."""
    if not (math.isfinite(time_s) and 0 <= time_s * 1000 <= _LAST_MS):
        return None
    return f"{PREFIX}{kind}/{_LAST_MS - int(time_s * 1000):014d}-{identifier}/"


def names(identifier: str, kind: str, value: object) -> tuple[str, ...]:
    """Return the names that hold a fact; none if it is too large."""
    text = base64.urlsafe_b64encode(zlib.compress(codec.encode_plain(value), 9)).decode().rstrip("=")
    pieces = [text[start : start + _PIECE_CHARACTERS] for start in range(0, len(text), _PIECE_CHARACTERS)]
    head = f"{kind}.{_check(identifier, kind, text)}"
    whole = tuple(f"{head}.{number:02d}-{len(pieces):02d}.{piece}" for number, piece in enumerate(pieces, 1))
    return whole if len(pieces) <= _MOST_PIECES else ()


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a name in the index."""
    return _NAME.fullmatch(text) is not None


def facts(identifier: str, listed: Iterable[str], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts in names with their kinds, each decoded as the type of its kind. Other names are left out."""
    parsed = sorted(match.groups() for name in listed if (match := _NAME.fullmatch(name)))
    for (kind, check), group in groupby(parsed, key=lambda parts: parts[:2]):
        pieces = [(number, count, piece) for _, _, number, count, piece in group]
        text = "".join(piece for *_, piece in pieces)
        if kind in kinds and check == _check(identifier, kind, text):
            with suppress(zlib.error, binascii.Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield kind, msgspec.msgpack.decode(_expand(text), type=kinds[kind])


def newest(store: ObjectStore, kind: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each run or snapshot with the names of its facts, the newest first. A page of a listing has hundreds."""
    prefix = f"{PREFIX}{kind}/"
    paths = (stat.key.removeprefix(prefix).partition("/") for stat in store.list(prefix))
    for entry, group in groupby(paths, key=lambda path: path[0]):
        yield entry.partition("-")[2], [name for _, _, name in group]


def write(store: ObjectStore, keys: Iterable[str]) -> None:
    """Create keys of the index, once; their originals must be published already."""
    for _ in concurrency.for_each(lambda key: _create(store, key), keys):
        pass


def _create(store: ObjectStore, key: str) -> None:
    with suppress(ObjectExists):
        store.create(key, b"")


def _check(identifier: str, kind: str, text: str) -> str:
    return hashlib.blake2b(f"{identifier}/{kind}/{text}".encode(), digest_size=8).hexdigest()


def _expand(text: str) -> bytes:
    stream = zlib.decompressobj()
    return stream.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), _MOST_BYTES)
