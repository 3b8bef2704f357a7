"""Tables that Lightning's CSVLogger writes into its numbered folders, `metrics.csv`."""

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence

from m5ws.records.tree import Entry
from m5ws.repository.repository import Repository


def folder_of(name: str, folders: Collection[str]) -> str | None:
    """Return the one of the numbered `folders` in which a table of Lightning's CSVLogger is; None for another file."""
    path, _, file = name.rpartition("/")
    folder = path.rstrip("N0123456789")
    # Of several paths that differ in their times, each has its place among them.
    either = (folder, re.sub(r" \(\d+\)", "", folder))
    return next((each for each in either if each in folders), None) if file == "metrics.csv" else None


def means(rows: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the columns of means over an epoch, as Lightning logs them."""
    columns = {column for row in rows for column in row if column.endswith("_epoch")}
    steps = {column: f"{column.removesuffix('_epoch')}_step" for column in columns}
    every = {column for row in rows for column in row}
    together = {column for row in rows for column, step in steps.items() if column in row and step in row}
    return {column for column, step in steps.items() if step in every} - together


def read(repo: Repository, entry: Entry) -> list[dict[str, str]]:
    """Return the cells that are not empty of each row of a table, by column.

    Raises csv.Error, or ValueError for two columns of one name, or a row with more cells than there are columns.
    """
    text = b"".join(repo.objects.read(part) for part in entry.parts).decode(errors="surrogateescape")
    table = csv.DictReader(io.StringIO(text), restval="")
    names = table.fieldnames or ()
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    rows = list(table)
    if any(None in row for row in rows):
        raise ValueError("a row has more cells than there are columns")
    return [{column: cell for column, cell in row.items() if cell} for row in rows]
