"""Two versions of a config file, mixed by keys: one's text, with the other's values for some of the keys that differ.

A mixture is read again and compared with what it is meant to say: where a key cannot be changed by itself (a YAML
anchor that several keys share), it is an error, and never another mixture.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from m5ws.config import flatten
from m5ws.errors import M5Error
from m5ws.snapshot.config import edit

Keys = tuple[str | int, ...]
"""Where a value is: the key at each level, the number for items of lists."""

_ABSENT = object()


class Unmixable(M5Error):
    """Two sides cannot be mixed as asked."""

    hint = "The two runs' versions can only be taken whole."


def differing(name: str, old: bytes, new: bytes) -> dict[Keys, tuple[str | None, str | None]] | None:
    """Return the places whose values differ, with both values as JSON (None: absent).

    A mapping or list that only one side has, and lists of different lengths, are one value. None if the files can only
    be taken whole: they cannot be read, no key differs, or one cannot be changed without another.
    """
    try:
        before, after = flatten.parse(name, old), flatten.parse(name, new)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return None
    try:
        found = {place: (_shown(one), _shown(other)) for place, one, other in _walk((), before, after)}
        if any(not isinstance(key, str | int) for place in found for key in place):
            return None
        for place in found:
            merged(name, old, new, [place])
        merged(name, old, new, found)
    except (Unmixable, TypeError, RecursionError):
        return None
    return found or None


def merged(name: str, old: bytes, new: bytes, places: Iterable[Keys]) -> bytes:
    """Return `old` with the values of `new` at `places`, which `differing` returned. Raises Unmixable."""
    before, after = flatten.parse(name, old), flatten.parse(name, new)
    values = {place: _at(after, place) for place in places}
    wanted = _changed(_unshared(before), values)
    yaml = PurePosixPath(name).suffix.lower() in (".yaml", ".yml")
    styled = {place: edit.yaml_styled(value) if yaml else value for place, value in values.items()}
    try:
        result = edit.edit(name, old, lambda document: _changed(document, styled))
        said = flatten.parse(name, result)
    except (edit.BadConfigFile, AttributeError, LookupError, TypeError, ValueError) as error:
        # AttributeError: tomlkit, where a table of an array of tables becomes a plain value.
        raise Unmixable(f"{name} cannot be changed key by key: {error}") from error
    if next(_walk((), said, wanted), None) is not None:
        raise Unmixable(f"{name} cannot be changed key by key: several keys share a value")
    return result


def _walk(place: Keys, old: Any, new: Any) -> Iterator[tuple[Keys, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _walk((*place, key), old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _walk((*place, number), one, other)
    elif _shown(old) != _shown(new):
        yield place, old, new


def _at(document: Any, place: Keys) -> Any:
    for key in place:
        if isinstance(document, dict) and key not in document:
            return _ABSENT
        document = document[key]
    return document


def _changed(document: Any, values: Mapping[Keys, Any]) -> Any:
    """Set values in a parsed document, or take them out where they are absent, and return it."""
    for (*way, last), value in values.items():
        node = document
        for key in way:
            node = node[key]
        if value is _ABSENT:
            del node[last]
        else:
            node[last] = value
    return document


def _unshared(value: Any) -> Any:
    """Return a copy in which no two keys share a mapping or list, as those of a YAML anchor do."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return list(map(_unshared, value)) if isinstance(value, list) else value


def _shown(value: Any) -> str | None:
    """Return a value as text that differs where the values do: `1`, `1.0`, `true` and `"1"` are four."""
    return None if value is _ABSENT else json.dumps(value, ensure_ascii=False, default=str)
