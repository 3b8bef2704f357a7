"""Pages from the templates in this folder. Every text is escaped, and control characters become visible.

A page forbids scripts and everything from elsewhere by its own policy, so even markup in a value could load nothing
(https://www.w3.org/TR/CSP3/).
"""

import datetime as dt
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from m5ws.control_characters import escaped
from m5ws.errors import UsageError
from m5ws.filesystem import write_atomically

MARK = b"<!doctype html>\n<!-- page of m5ws -->\n"
"""First bytes of each page. A file without them is never replaced."""


def render(template: str, **values: object) -> str:
    """Return a template with values. Values of None are left out."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    templates.filters |= {"moment": moment, "count": "{:,}".format}
    return templates


def _visible(value: object) -> object:
    """Return a value with its control characters in visible form. jinja then escapes all but its own markup."""
    return value if isinstance(value, Markup) else "" if value is None else escaped(str(value))


def moment(time_s: float | None) -> str | None:
    """Return a time in UTC, to the second; None for none."""
    if not time_s:
        return None
    try:
        return f"{dt.datetime.fromtimestamp(time_s, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OSError, OverflowError, ValueError):
        return f"{time_s} s"


def write(path: Path, page: str) -> None:
    """Write a page atomically. Raises UsageError if the file exists and is no page of m5ws, or has no folder."""
    refuse_other_file(path)
    write_atomically(path, page.encode())


def refuse_other_file(path: Path) -> None:
    """Raise UsageError if a page cannot be written to `path`: another file is there, or the folder is missing."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="Create the folder, or choose another file.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="Name a file in the folder.")
    if path.exists() and path.open("rb").read(len(MARK)) != MARK:
        raise UsageError(f"{path} exists, and is no page of m5ws", hint="Choose another file, or move this file away.")
