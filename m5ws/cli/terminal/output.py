"""Output of commands: one JSON document, or lines for people. Results go to stdout, all else to stderr.

Numbers are short for people and exact in JSON. All text reaches a terminal by `echo`, which escapes control characters
of text from a store, a script or another person.
"""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click
import msgspec

from m5ws.control_characters import CONTROL, escaped
from m5ws.records import exact

if TYPE_CHECKING:
    from rich.text import Text

P = ParamSpec("P")
R = TypeVar("R")

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")


def json_command(command: Callable[Concatenate[click.Context, P], R]) -> Callable[P, R]:
    """Pass its context to a command, which has the option `--json`."""
    return json_option(click.pass_context(command))


def limit_option(text: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the option of a list that is cut, with its help text."""
    return click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help=text)


class StyledText(msgspec.Struct, frozen=True):
    """Text with a style for terminals."""

    text: str
    colour: str | None = None
    bold: bool = False


Line = str | tuple[str | StyledText, ...]
"""A line for people. It is in pieces if their styles differ."""


_end_silence: Callable[[], None] | None = None


def before_output(end: Callable[[], None]) -> None:
    """Have `end` called once, before anything is printed or shown."""
    global _end_silence  # noqa: PLW0603  # there is one terminal
    _end_silence = end


def end_silence() -> None:
    """Call the function of `before_output`. Displays that do not print by `echo` call this before they begin."""
    global _end_silence
    end, _end_silence = _end_silence, None
    if end is not None:
        end()


def echo(*lines: Line, err: bool = False, nl: bool = True) -> None:
    """Print lines, escaped. Styles are left out if there is no terminal."""
    end_silence()
    click.echo("\n".join(map(_rendered, lines)), err=err, nl=nl)


def rich_text(lines: Sequence[Line]) -> "Text":
    """Return lines for a live display of rich, escaped. Each is cut at the width of the terminal."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    for number, line in enumerate(lines):
        text.append("\n" * (number > 0))
        for piece in (line,) if isinstance(line, str) else line:
            style = "" if isinstance(piece, str) else f"{'bold ' * piece.bold}{piece.colour or ''}".strip()
            text.append(escaped(plain_text((piece,))), style)
    return text


def plain_text(line: Line) -> str:
    """Return a line without its styles."""
    return line if isinstance(line, str) else "".join(p if isinstance(p, str) else p.text for p in line)


def _rendered(line: Line) -> str:
    pieces = (line,) if isinstance(line, str) else line
    return "".join(
        escaped(plain_text((piece,)))
        if isinstance(piece, str) or not (piece.colour or piece.bold)
        else click.style(escaped(piece.text), fg=piece.colour, bold=piece.bold or None)
        for piece in pieces
    )


def print_json(value: object) -> None:
    """Print records, and lists and mappings of them, as one JSON document on stdout."""
    text = msgspec.json.format(msgspec.json.encode(plain(value)), indent=2).decode()
    end_silence()
    # JSON escapes only C0. All other control characters are inside strings.
    click.echo(CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def plain(value: object) -> object:
    """Return records as plain data with their sentences. Paths (bytes) become text; undecodable bytes are escaped."""
    from m5ws.wording.sentences import add_sentences

    made = msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_path)
    add_sentences(value, made)
    return _texts(made)


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    # msgspec expects this error of an encoding hook. A value that no record may have is a bug.
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


def number(text: str) -> str:
    """Return an exact quantity rounded for people. Other text, such as a digest, is returned unchanged."""
    if not text.lstrip("-").startswith(("0x", "nan:")):
        return text
    try:
        return f"{exact.decode(text):.6g}"
    except (OverflowError, ValueError):
        return text


def rounded(value: float | None) -> str:
    """Return a number rounded for people; `-` for none."""
    return "-" if value is None else f"{value:.6g}"


def cut(text: str | None, characters: int = 60) -> str:
    """Return text in one line of limited length; `absent` for none."""
    line = "absent" if text is None else " ".join(text.split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"


def short(identifier: str) -> str:
    """Return the first characters of an id, enough for people. Every command accepts them."""
    return identifier[:12]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under heads in columns. The last column is not padded."""
    cells = [[_cell(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def _cell(text: str) -> str:
    """Return text as one line, because a name with a line end would look like two rows."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def fields(pairs: Mapping[str, str | None], indent: str = "") -> str:
    """Return names and values in two columns, without values of None."""
    shown = {name: value for name, value in pairs.items() if value is not None}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{indent}{name.ljust(width)}  {value}".rstrip() for name, value in shown.items())


def print_note(message: str) -> None:
    """Print a line on stderr that is not a result, unless `-q` is given."""
    context = click.get_current_context(silent=True)
    if context is None or not context.find_root().params.get("quiet"):
        echo(message, err=True)


def warn(message: str) -> None:
    """Print a line on stderr that a person must see."""
    echo(message, err=True)
