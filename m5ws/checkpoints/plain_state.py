"""The state of a checkpoint that is no tensor, as people read and compare it: leaves, by where they are.

Plain data is what `training.plain` writes: its tags are understood here without torch. What is long, as the state of a
generator is, is shown as a digest; what is compared are bytes, never values.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records import codec
from m5ws.records.checkpoint import Content
from m5ws.records.tree import Slice
from m5ws.repository.objects import Objects

_TAG = "!"
_KIND = "m5ws.kind"
_VALUES = {"dtype": "name", "stage": "value"}
_LONG = 8
_LONG_TEXT = 120
_NOTHING = "{}"
_DERIVED = "fingerprints"
"""What follows from the tensors, which are compared themselves."""


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One value: `where` it is ("all ranks", "rank 0", a file), its path there, and what it is, for people."""

    where: str
    path: str
    value: str


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is not the same in two checkpoints; None where one has none."""

    where: str
    path: str
    a: str | None
    b: str | None


def leaves(objects: Objects, content: Content) -> Iterator[Leaf]:
    """Yield all plain state of a checkpoint, what the framework keeps of each place last.

    Raises NotFound, CorruptObject.
    """
    for where, part in places(content).items():
        found = _values(objects, part)
        for path in sorted(found, key=lambda path: path.startswith("backend.")):
            if found[path].text != _NOTHING:
                yield Leaf(where=where, path=path, value=found[path].text)


def places(content: Content) -> dict[str, Slice]:
    """Return the parts that hold plain state, by what they are called."""
    found = {"all ranks": content.common} if content.common is not None else {}
    found |= {f"rank {number}": part for number, part in enumerate(content.ranks)}
    return found | (dict(content.blobs) if content.format == "deepspeed/1" else {})


def read(objects: Objects, part: Slice) -> dict[str, Any]:
    """Return a part's plain data. Raises NotFound, CorruptObject."""
    value = codec.decode_plain(objects.read(part))
    if not isinstance(value, dict):
        raise CorruptObject("a checkpoint's plain state is not a mapping")
    return value


def changes(objects: Objects, a: Content, b: Content) -> Iterator[StateChange]:
    """Yield what differs; parts with equal digests are not read. Raises NotFound, CorruptObject."""
    ours, theirs = places(a), places(b)
    for where in ours.keys() & theirs.keys():
        if ours[where].digest == theirs[where].digest:
            del ours[where], theirs[where]
    for where in sorted(ours.keys() | theirs.keys()):
        if where not in ours or where not in theirs:
            yield StateChange(where=where, path="", a=_there(where, ours), b=_there(where, theirs))
            continue
        old, new = _values(objects, ours[where]), _values(objects, theirs[where])
        for path in [*old, *(path for path in new if path not in old)]:
            one, other = old.get(path), new.get(path)
            if one is None or other is None or one.data != other.data:
                texts = (value.text if value is not None else None for value in (one, other))
                yield StateChange(where=where, path=path, **dict(zip(("a", "b"), texts, strict=True)))


def _there(where: str, found: Mapping[str, Slice]) -> str | None:
    return f"{found[where].size_bytes} bytes" if where in found else None


class _Value(msgspec.Struct, frozen=True):
    """A leaf's bytes, and what people see of it."""

    data: bytes
    text: str


def _values(objects: Objects, part: Slice) -> dict[str, _Value]:
    """Return a part's leaves by path. Raises CorruptObject where its tags contradict each other, NotFound."""
    whole = read(objects, part)
    try:
        return {path: _Value(codec.encode_plain(value), _text(value)) for path, value in _flat(whole)}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptObject(f"a checkpoint's plain state is not as m5ws writes it: {error!r}") from error


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield leaves by their path; a generator is one leaf, and so is any list of many numbers."""
    if isinstance(value, dict) and _KIND in value:
        yield from _framework(value, path)
    elif path.startswith("generators.") or not isinstance(value, dict | list) or not value or _is_long(value):
        yield path, value
    else:
        for name, item in _items(value):
            if path or name != _DERIVED:
                yield from _flat(item, f"{path}.{name}" if path else name)


def _framework(value: dict[str, Any], path: str) -> Iterator[tuple[str, object]]:
    """Yield the leaves of one of DeepSpeed's objects (training/backends/deepspeed/state.py), but for tensors."""
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
    """Return whether this is one leaf: a tensor, an array, or a list of many plain values."""
    if isinstance(value, list):
        return len(value) > _LONG and not any(isinstance(item, dict | list) for item in value)
    if _TAG not in value:
        return False
    items = value.get("items")
    return not isinstance(items, list) or not items or (value[_TAG] == "tuple" and _is_long(items))


def _text(value: object) -> str:
    """Return a leaf for people; what is long, by a digest of its bytes."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes, {_digest(value)}"
    if isinstance(value, list):
        return _sequence(value, value)
    if isinstance(value, dict) and value.get(_TAG) in {"tensor", "array"}:
        return f"{value['dtype']} {_shape(value['shape'])}, {_digest(value)}"
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


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _digest(value: object) -> str:
    """Return 16 hex digits: of a generator, the ones that the ledger has."""
    return hashlib.blake2b(codec.encode_plain(value), digest_size=8).hexdigest()
