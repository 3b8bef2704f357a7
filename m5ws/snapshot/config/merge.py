"""Merge of two versions of a config file by keys: the text of one version, with values of the other version for some
keys.

The result is parsed and compared with the intended values. If a key cannot be changed by itself (several keys share a
YAML anchor), the merge fails.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from m5ws.config import flatten
from m5ws.errors import M5Error
from m5ws.snapshot.config import edit

Keys = tuple[str | int, ...]
"""Path of a value: the key at each level, the number for items of lists."""

_ABSENT = object()


class MergeConflict(M5Error):
    """Two versions cannot be merged at the requested keys."""

    hint = "Only whole versions of this file can be exchanged between the two runs."


def differing_keys(name: str, old: bytes, new: bytes) -> dict[Keys, tuple[str | None, str | None]] | None:
    """Return the paths of values that differ, with both values as JSON (None: absent).

    A mapping or list that only one side has, and lists of different lengths, are one value. None if the files cannot
    be merged: they are invalid, no key differs, or a key cannot be changed by itself.
    """
    try:
        before, after = flatten.parse(name, old), flatten.parse(name, new)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return None
    try:
        values = {keys: (_shown(ours), _shown(theirs)) for keys, ours, theirs in _walk((), before, after)}
        if any(not isinstance(key, str | int) for keys in values for key in keys):
            return None
        for keys in values:
            merged(name, old, new, [keys])
        merged(name, old, new, values)
    except (MergeConflict, TypeError, RecursionError):
        return None
    return values or None


def merged(name: str, old: bytes, new: bytes, places: Iterable[Keys]) -> bytes:
    """Return `old` with the values of `new` at `places`, which `differing` returned. Raises MergeConflict."""
    before, after = flatten.parse(name, old), flatten.parse(name, new)
    values = {place: _at(after, place) for place in places}
    wanted = _changed(_unshared(before), values)
    yaml = PurePosixPath(name).suffix.lower() in (".yaml", ".yml")
    styled = {place: edit.yaml_styled(value) if yaml else value for place, value in values.items()}
    try:
        result = edit.edit(name, old, lambda document: _changed(document, styled))
        parsed = flatten.parse(name, result)
    except (edit.BadConfigFile, AttributeError, LookupError, TypeError, ValueError) as error:
        # AttributeError: tomlkit, where a table of an array of tables becomes a plain value.
        raise MergeConflict(f"{name} cannot be merged by keys: {error}") from error
    if next(_walk((), parsed, wanted), None) is not None:
        raise MergeConflict(f"{name} cannot be merged by keys: several keys share a value")
    return result


def _walk(place: Keys, old: Any, new: Any) -> Iterator[tuple[Keys, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _walk((*place, key), old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (ours, theirs) in enumerate(zip(old, new, strict=True)):
            yield from _walk((*place, number), ours, theirs)
    elif _shown(old) != _shown(new):
        yield place, old, new


def _at(document: Any, place: Keys) -> Any:
    for key in place:
        if isinstance(document, dict) and key not in document:
            return _ABSENT
        document = document[key]
    return document


def _changed(document: Any, values: Mapping[Keys, Any]) -> Any:
    """Set values in a parsed document, or remove absent values, and return it."""
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
    """Return a copy in which no two keys share a mapping or list, as keys of a YAML anchor do."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return list(map(_unshared, value)) if isinstance(value, list) else value


def _shown(value: Any) -> str | None:
    """Return a value as JSON, so that different values have different text: `1`, `1.0`, `true`, `"1"`."""
    return None if value is _ABSENT else json.dumps(value, ensure_ascii=False, default=str)
