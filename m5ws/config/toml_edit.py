"""One value or entry of an array set in a TOML file. All other bytes of the file stay the same (https://toml.io/en/v1.0.0).

tomlkit changes an existing value, and adds a key to an inline table. Any other new key is one line below the header of
its table. A table without a header gets a dotted key on the first line, and a new table a header at the end.
"""

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from m5ws.config.reader import Key
from m5ws.filesystem import write_atomically


def with_value(text: str, key: Key, value: str | list[str]) -> str:
    """Return valid TOML with another value of a key, which is below a table of the root."""
    import tomlkit
    from tomlkit.items import InlineTable

    document = tomlkit.parse(text)
    node: Any = document
    for name in key[:-1]:
        if isinstance(node, InlineTable) and name not in node:
            node[name] = tomlkit.inline_table()
        node = node.get(name, {})
    if node.get(key[-1]) == value:
        return text
    if key[-1] not in node and not isinstance(node, InlineTable):
        return _with_line(text, key, value)
    node[key[-1]] = value
    return tomlkit.dumps(document)


def with_entry(text: str, key: Key, entry: str) -> str:
    """Return valid TOML with an entry in the array of a key, which is below a table of the root."""
    import tomlkit

    document = tomlkit.parse(text)
    node: Any = document
    for name in key:
        node = node.get(name, {})
    if not node:
        return with_value(text, key, [entry])
    if entry in node:
        return text
    node.append(entry)
    return tomlkit.dumps(document)


def write(path: Path, text: str) -> None:
    """Write a file with its mode. A symbolic link stays, and its target is written. Raises OSError."""
    target = path.resolve()
    mode = target.stat().st_mode
    write_atomically(target, text.encode())
    target.chmod(mode)


def _with_line(text: str, key: Key, value: str | list[str]) -> str:
    """Return the text with one line more, for a new key outside of inline tables."""
    import tomlkit

    end = "\r\n" if "\r\n" in text else "\n"
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    lines[-1:] = [line if line.endswith("\n") else line + end for line in lines[-1:]]
    places = {table: place for table in (key[:1], key[:-1]) if (place := _below_header(lines, table)) is not None}
    if not places and key[0] not in tomllib.loads(text):
        lines += [end] * bool(lines) + [f"[{key[0]}]{end}"]
        places[key[:1]] = len(lines)
    table = max(places, key=len, default=Key())
    name = tomlkit.key(key[len(table) :]).as_string()
    lines.insert(places.get(table, 0), f"{name} = {tomlkit.item(value).as_string()}{end}")
    return "".join(lines)


def _below_header(lines: Sequence[str], table: Key) -> int | None:
    """Return the number of the line below the header of a table, None without a header.

    A line begins a statement if the lines above are valid TOML. So a header inside a long text is none.
    """
    header = tomllib.loads(f"[{'.'.join(table)}]")
    for number, line in enumerate(lines):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads("".join(lines[:number]))
            if line.lstrip().startswith("[") and tomllib.loads(line) == header:
                return number + 1
    return None
