"""What verbs print: one JSON document, or lines for people. Results on stdout, the rest on stderr.

Numbers for people are short here and exact in JSON.
"""

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    import logging

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")


@contextmanager
def warnings() -> "Iterator[list[logging.LogRecord]]":
    """Give the list of all that is warned of while the context lasts."""
    import logging

    found = list[logging.LogRecord]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = found.append  # type: ignore[assignment, method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(handler)


def print_json(value: object) -> None:
    """Print records, and lists and mappings of them, as one JSON document on stdout."""
    data = msgspec.json.encode(plain(value))
    click.echo(msgspec.json.format(data, indent=2))


def plain(value: object) -> object:
    """Return records as plain data, with paths (bytes in records) as text; undecodable bytes are escaped."""
    return _texts(msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_path))


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    # What msgspec asks of an encoding hook: a value that no record may hold is a bug, and is reported as one.
    raise NotImplementedError(f"no JSON for {type(value)}")


def _texts(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    return value


def size(size_bytes: int) -> str:
    """Return a size for people: 3 significant digits, powers of 1024."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1000 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def moment(time_s: float | None) -> str:
    """Return a time for people, in local time to the second."""
    try:
        return f"{datetime.datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M:%S}" if time_s else "-"
    except (OSError, OverflowError, ValueError):
        return f"{time_s} s"


def duration(seconds: float) -> str:
    """Return a duration for people: `42s`, `3m 05s`, `2h 04m`, `3d 04h`."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {whole % 60:02d}s" if minutes else f"{whole}s"


def number(exact: str) -> str:
    """Return an exact quantity (`float.hex()`) for people; other text, a digest for one, as it is."""
    if not exact.lstrip("-").startswith("0x"):
        return exact
    try:
        return f"{float.fromhex(exact):.6g}"
    except (OverflowError, ValueError):
        return exact


def short(identifier: str) -> str:
    """Return as much of an id as people need to see; every verb takes it back."""
    return identifier[:12]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under heads in columns, the last one as long as it is."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows))
    return "\n".join(line.rstrip() for line in lines)


def fields(pairs: Mapping[str, str | None], indent: str = "") -> str:
    """Return names and values in two columns; a value of None is left out."""
    shown = {name: value for name, value in pairs.items() if value is not None}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{indent}{name.ljust(width)}  {value}".rstrip() for name, value in shown.items())


def note(message: str) -> None:
    """Print a line that is not the result, on stderr, unless `-q` was given."""
    context = click.get_current_context(silent=True)
    if context is None or not context.find_root().params.get("quiet"):
        click.echo(message, err=True)


def warn(message: str) -> None:
    """Print a line that a person must see, on stderr."""
    click.echo(message, err=True)
