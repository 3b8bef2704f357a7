"""The state of a checkpoint other than tensors, as leaves with a place and a path, for people and comparisons.

Plain data is in the format of `training.plain`, whose tags are read here without torch. A long value, such as the state
of a generator, is shown as a digest. Bytes are compared, never values.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Slice
from m5ws.repository import contents
from m5ws.repository.objects import Objects

_TAG = "!"
_KIND = "m5ws.kind"
_VALUES = {"dtype": "name", "stage": "value"}
_LONG = 8
_LONG_TEXT = 120
_NOTHING = "{}"


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One value: its place `where` ("all ranks", "rank 0", a file), its path there, and its text for people."""

    where: str
    path: str
    value: str


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A value that differs between two checkpoints; None on a side without the value."""

    where: str
    path: str
    a: str | None
    b: str | None


def leaves(objects: Objects, content: Content) -> Iterator[Leaf]:
    """Yield all plain state of a checkpoint. The framework's state of each place comes last.

    Raises NotFound, CorruptObject.
    """
    for where, part in places(objects, content):
        values = _values(objects, part)
        for path in sorted(values, key=lambda path: path.startswith("backend.")):
            if values[path].text != _NOTHING:
                yield Leaf(where=where, path=path, value=values[path].text)


def places(objects: Objects, content: Content, *, ranks: bool = True) -> Iterator[tuple[str, Slice]]:
    """Yield the display names and the slices of plain state: of all ranks, and of each rank if `ranks`."""
    if content.common is not None:
        yield "all ranks", content.common
    for number, share in contents.shares(objects, content) if ranks else ():
        if share.state is not None:
            yield f"rank {number}", share.state
        if content.format == "deepspeed/1":
            yield from sorted(share.blobs.items())


def read(objects: Objects, part: Slice) -> dict[str, Any]:
    """Return a part's plain data. Raises NotFound, CorruptObject."""
    value = codec.decode_plain(objects.read(part))
    if not isinstance(value, dict):
        raise CorruptObject("a checkpoint's plain state is not a mapping")
    return value


def changes(objects: Objects, a: Content, b: Content, *, ranks: bool) -> Iterator[StateChange]:
    """Yield the values that differ, with the state of each rank if `ranks`.

    Slices with equal digests are not read. Raises NotFound, CorruptObject.
    """
    ours, theirs = (dict(places(objects, content, ranks=ranks)) for content in (a, b))
    for where in ours.keys() & theirs.keys():
        if ours[where].digest == theirs[where].digest:
            del ours[where], theirs[where]
    for where in sorted(ours.keys() | theirs.keys()):
        if where not in ours or where not in theirs:
            yield StateChange(where=where, path="", a=_size(where, ours), b=_size(where, theirs))
            continue
        old, new = _values(objects, ours[where]), _values(objects, theirs[where])
        for path in [*old, *(path for path in new if path not in old)]:
            before, after = old.get(path), new.get(path)
            if before is None or after is None or before.data != after.data:
                texts = (value.text if value is not None else None for value in (before, after))
                yield StateChange(where=where, path=path, **dict(zip(("a", "b"), texts, strict=True)))


def _size(where: str, parts: Mapping[str, Slice]) -> str | None:
    return f"{parts[where].size_bytes} bytes" if where in parts else None


class _Value(msgspec.Struct, frozen=True):
    """A leaf's bytes, and its text for people."""

    data: bytes
    text: str


def _values(objects: Objects, part: Slice) -> dict[str, _Value]:
    """Return a part's leaves by path. Raises CorruptObject if its tags contradict each other, NotFound."""
    whole = read(objects, part)
    try:
        return {path: _Value(codec.encode_plain(value), _text(value)) for path, value in _flat(whole)}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptObject(f"a checkpoint's plain state has an invalid structure: {error!r}") from error


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield leaves by path. A generator is one leaf, and so is any list of many numbers."""
    if isinstance(value, dict) and _KIND in value:
        yield from _framework(value, path)
    elif path.startswith("generators.") or not isinstance(value, dict | list) or not value or _is_long(value):
        yield path, value
    else:
        for name, item in _items(value):
            yield from _flat(item, f"{path}.{name}" if path else name)


def _framework(value: dict[str, Any], path: str) -> Iterator[tuple[str, object]]:
    """Yield the leaves of one of DeepSpeed's objects (training/backends/deepspeed/state.py), without tensors."""
    kind = value[_KIND]
    if kind == "module":
        yield from _flat(value["items"], path)
        yield f"{path}.metadata", value["metadata"]
    elif kind in _VALUES:
        yield path, value[_VALUES[kind]]
    elif kind != "tensor":
        yield from _flat(value.get("fields"), path)


def _items(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, object]]:
    if isinstance(value, list):
        yield from ((str(number), item) for number, item in enumerate(value))
    elif _TAG not in value:
        yield from value.items()
    elif value[_TAG] == "tuple":
        yield from _items(value["items"])
    elif isinstance(value.get("items"), list):
        yield from ((_text(key), item) for key, item in value["items"])
    else:
        yield "", value


def _is_long(value: dict[str, Any] | list[Any]) -> bool:
    """Return True if a value is one leaf: a tensor, an array, or a list of many plain values."""
    if isinstance(value, list):
        return len(value) > _LONG and not any(isinstance(item, dict | list) for item in value)
    if _TAG not in value:
        return False
    items = value.get("items")
    return not isinstance(items, list) or not items or (value[_TAG] == "tuple" and _is_long(items))


def _text(value: object) -> str:
    """Return a leaf's text for people. A long value is shown by a digest of its bytes."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes, {_digest(value)}"
    if isinstance(value, list):
        return _sequence(value, value)
    if isinstance(value, dict) and value.get(_TAG) in {"tensor", "array"}:
        shape = "×".join(map(str, value["shape"])) or "scalar"
        return f"{value['dtype']} {shape}, {_digest(value)}"
    if isinstance(value, dict) and value.get(_TAG) == "int":
        return str(int(value["hex"], 16))
    if isinstance(value, dict):
        items = value.get("items")
        return _sequence(value, items) if isinstance(items, list) else _digest(value) if value else _NOTHING
    text = repr(value)
    return text if len(text) <= _LONG_TEXT else f"{text[:_LONG_TEXT]}…, {_digest(value)}"


def _sequence(value: object, items: Sequence[object]) -> str:
    if len(items) > _LONG or any(isinstance(item, dict | list | bytes) for item in items):
        return f"{len(items)} values, {_digest(value)}"
    return f"[{', '.join(map(_text, items))}]"


def _digest(value: object) -> str:
    """Return a digest of 16 hex digits. For a generator, it equals the ledger's."""
    return hashlib.blake2b(codec.encode_plain(value), digest_size=8).hexdigest()
