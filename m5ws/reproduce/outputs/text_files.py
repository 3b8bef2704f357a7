"""Values of text files: JSON and YAML by keys, tables by rows and columns, other text by lines and named numbers."""

import csv
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal

from m5ws.reproduce.outputs.inert_pickles import flat
from m5ws.reproduce.outputs.named_values import exact_text, unique

_ROWS = 10**6
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_PAIR = re.compile(rf"(?<![\w./-])([A-Za-z_][\w/-]*)[:=] ?({_NUMBER})(?=[\s,;|)]|$)(?!\s*\d)")
"""A named number in a line, as in `loss:5.31 lr:0.01`, and not a date before a time of day."""


def values(name: str, data: bytes) -> dict[str, str]:
    """Return the exact text of each value by its name.

    A file that does not fit the format of its name is read by lines. Raises ValueError if it is no text, or too long.
    """
    text = data.decode()
    try:
        if name.endswith(".json"):
            return _flat(_json(text))
        if name.endswith((".jsonl", ".ndjson")):
            return _flat([_json(line) for line in text.splitlines()])
        if name.endswith((".yaml", ".yml")):
            return _flat(_yaml(text))
        if name.endswith((".csv", ".tsv")):
            return unique(_cells(text, "," if name.endswith(".csv") else "\t"))
    except (ValueError, RecursionError, csv.Error):
        pass
    return _lines(text)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _flat(document: object) -> dict[str, str]:
    return unique((key, exact_text(value)) for key, value in flat(document))


def _json(text: str) -> object:
    return json.loads(text, object_pairs_hook=unique, parse_float=_number)


def _number(text: str) -> float | str:
    """Return a number, or its text if it has more digits than a float, since those may be the only difference."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


def _lines(text: str) -> dict[str, str]:
    lines = text.splitlines(keepends=True)
    if len(lines) > _ROWS:
        raise ValueError("too many lines")
    return {key: value for number, line in enumerate(lines, 1) for key, value in _parts(f"line {number}", line)}


def _parts(key: str, line: str) -> Iterator[tuple[str, str]]:
    """Yield a line without its named numbers, and these by their names. If a name repeats, yield the whole line."""
    pairs = _PAIR.findall(line)
    if len({name for name, _ in pairs}) < len(pairs):
        pairs = []
    yield key, _PAIR.sub(r"\1", line) if pairs else line
    yield from ((f"{key}.{name}", number) for name, number in pairs)


def _cells(text: str, delimiter: str) -> Iterator[tuple[str, str]]:
    """Yield the cells of a table, each named by its row and column. Raises ValueError if it is no table."""
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    if len(rows) > _ROWS or not rows or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("not a table")
    yield "columns", repr(rows[0])
    for number, row in enumerate(rows[1:], 1):
        yield from ((f"{number}.{column}", cell) for column, cell in zip(rows[0], row, strict=True))


def _yaml(text: str) -> object:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error
