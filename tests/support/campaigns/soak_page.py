"""The tables of docs/soak.md. Each is written between its marks by the test that fills it."""

import fcntl
import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "soak.md"


def write(section: str, lines: Iterable[str]) -> None:
    """Put a table into its place on the page."""
    text = PAGE.read_text(encoding="utf-8")
    table = "\n".join(lines)
    marks = re.compile(rf"(<!-- {section}: begin -->\n).*?(<!-- {section}: end -->)", re.DOTALL)
    assert marks.search(text)
    PAGE.write_text(marks.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text), encoding="utf-8")


def put(section: str, header: Iterable[str], row: str, *, cells: int = 1) -> None:
    """Put one row into its table, in place of the row with the same first `cells` cells.

    Campaigns may run in parallel.
    """
    table = re.compile(rf"<!-- {section}: begin -->\n(.*?)<!-- {section}: end -->", re.DOTALL)
    key = row.split("|")[: cells + 1]
    with PAGE.open() as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        match = table.search(PAGE.read_text("utf-8"))
        assert match
        rows = [line for line in match[1].splitlines()[2:] if line.split("|")[: cells + 1] != key]
        write(section, [*header, *sorted([*rows, row])])
