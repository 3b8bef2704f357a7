"""Values of text files: JSON and YAML by keys, CSV by rows and columns, other text by lines.

The work is bounded by the size of a file, and by the number of values that aliases of YAML stand for.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal

from m5ws.config import flatten
from m5ws.reproduce.outputs.inert_pickles import flat
from m5ws.reproduce.outputs.named_values import exact_text, unique

TEXT_BYTES = 2**26
"""Upper bound of the text that is read here."""
_KEYED_BYTES = 2**24
_YAML_BYTES = 2**18
_ROWS = 10**6


def values(name: str, data: bytes) -> Mapping[str, str]:
    """Return the exact text of each value by its key, cell or line. Raises ValueError if the file is no text."""
    try:
        return keys(name, data)
    except ValueError:
        lines = data.decode().splitlines(keepends=True)
        return {f"line {number}": line for number, line in enumerate(lines, 1)}


def keys(name: str, data: bytes) -> dict[str, str]:
    """Return the exact text of each value in JSON or YAML by its dotted key, and of each cell of CSV by `row.column`.

    Raises ValueError with the reason if the file cannot be read by keys.
    """
    if len(data) > _KEYED_BYTES:
        raise ValueError(f"more than {_KEYED_BYTES:,} bytes are not read by keys")
    text = data.decode()
    try:
        if name.endswith(".json"):
            return _flat(_json(text))
        if name.endswith((".jsonl", ".ndjson")):
            return _flat([_json(line) for line in text.splitlines()])
        if name.endswith((".yaml", ".yml")):
            if len(text) > _YAML_BYTES:
                raise ValueError(f"YAML of more than {_YAML_BYTES:,} characters is not read by keys")
            return _flat(flatten.parse(name, data))
        if name.endswith((".csv", ".tsv")):
            return unique(_cells(text, "," if name.endswith(".csv") else "\t"))
    except (RecursionError, csv.Error) as error:
        raise ValueError(str(error)) from error
    raise ValueError("its format has no keys")


def select(name: str, found: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the values with a key, or below it. The key of a table is a column."""
    if name.endswith((".csv", ".tsv")):
        return {path: text for path, text in found.items() if path.partition(".")[2] == key}
    return {path: text for path, text in found.items() if path == key or path.startswith(f"{key}.")}


def _flat(document: object) -> dict[str, str]:
    return unique((key, exact_text(value)) for key, value in flat(document))


def _json(text: str) -> object:
    return json.loads(text, object_pairs_hook=unique, parse_float=_number)


def _number(text: str) -> float | str:
    """Return a number, or its text if it has more digits than a float: these digits may be the only difference."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


def _cells(text: str, delimiter: str) -> Iterator[tuple[str, str]]:
    """Yield the cells of a table, each named by its row and column. Raises ValueError if it is no table."""
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    if len(rows) > _ROWS or not rows or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("not a table with rows of one length")
    yield "columns", repr(rows[0])
    for number, row in enumerate(rows[1:], 1):
        yield from ((f"{number}.{column}", cell) for column, cell in zip(rows[0], row, strict=True))
