"""A whole page, with its style in it, and its tables.

The page forbids scripts and everything from elsewhere by its own policy, so even markup in a value could load nothing
(https://www.w3.org/TR/CSP3/).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from m5ws.errors import UsageError
from m5ws.filesystem import write_atomically
from m5ws.pages.markup import Child, Markup, tag

MARK = b"<!doctype html>\n<!-- page of m5ws -->\n"
"""First bytes of each page. A file without them is never replaced."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --good: #1a7f37; --bad: #cf222e; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: .6rem 0; max-width: 100%; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line) }
td { max-width: 34rem; overflow-wrap: break-word } td.changed { background: #fc03 }
code, td.code { font: 13px/1.5 ui-monospace, monospace }
pre { overflow-x: auto; background: var(--soft); padding: .6rem }
.verdict { border-left: .4rem solid var(--line); padding: .4rem .9rem; background: var(--soft); margin: 1rem 0 }
.verdict.good { border-color: var(--good) } .verdict.bad { border-color: var(--bad) }
.verdict strong { text-transform: uppercase } .quiet { opacity: .7 } figure { margin: 1rem 0 }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: currentColor }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem }
"""


def page(title: str, *content: Child) -> bytes:
    """Return a page as UTF-8."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width"),
        tag("title", title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    body = tag("body", tag("main", tag("h1", title), *content))
    return MARK + tag("html", head, body, lang="en").text.encode() + b"\n"


def write(path: Path, data: bytes) -> None:
    """Write a page atomically. Raises UsageError if the file exists and is no page of m5ws, or has no folder."""
    refuse_other_file(path)
    write_atomically(path, data)


def refuse_other_file(path: Path) -> None:
    """Raise UsageError if a page cannot be written to `path`: another file is there, or the folder is missing."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="Create it, or choose another file.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="Name a file in it.")
    if path.exists() and path.open("rb").read(len(MARK)) != MARK:
        raise UsageError(f"{path} exists, and is no page of m5ws", hint="Choose another file, or move this one away.")


def section(title: str, *content: Child) -> Markup | None:
    """Return content under a heading; None if there is none."""
    shown = [part for part in content if part is not None]
    return tag("section", tag("h2", title), *shown) if shown else None


def table(heads: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup | None:
    """Return a table; None without rows."""
    lines = [tag("tr", [_cell(cell) for cell in row]) for row in rows]
    if not lines:
        return None
    return tag("table", tag("thead", tag("tr", [tag("th", head) for head in heads])), tag("tbody", lines))


def _cell(cell: Child) -> Markup:
    """Return content in a cell; a cell as it is."""
    return cell if isinstance(cell, Markup) and cell.text.startswith("<td") else tag("td", cell)


def fields(pairs: Mapping[str, Child]) -> Markup | None:
    """Return names and values in two columns, without values of None."""
    rows = [tag("tr", tag("th", name), tag("td", value)) for name, value in pairs.items() if value is not None]
    return tag("table", tag("tbody", rows)) if rows else None


def code(text: str | None) -> Markup | None:
    """Return text in a fixed font; None for None."""
    return None if text is None else tag("code", text)


def details(summary: str, *content: Child) -> Markup:
    """Return content that is shown after a click."""
    return tag("details", tag("summary", summary), *content)
