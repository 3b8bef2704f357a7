"""Runs that meet a condition in SQL. SQLite evaluates the condition over a table of runs in memory.

An authorizer lets a condition read this table and call functions. It refuses all other statements and tables.
"""

import datetime as dt
import difflib
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from m5ws.errors import UsageError
from m5ws.runs.listing import RunRow

DescribedRun = tuple[RunRow, Mapping[str, str] | None]
"""A run and its parameters; None for a damaged run."""
_TEXTS = (
    "id",
    "name",
    "user",
    "host",
    "state",
    "created",
    "snapshot",
    "reproduces",
    "parent",
    "sweep",
    "verdict",
    "outcome",
    "why",
    "notes",
)
_NUMBERS = ("age_s", "step", "total_steps", "attempts", "loss", "lowest_loss", "lowest_step")
_NEAR = 6
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")*)\"""")


def matching(runs: Sequence[DescribedRun], condition: str, now_s: float) -> frozenset[str]:
    """Return the ids of the runs that meet a condition. Raises UsageError, with columns of similar names."""
    standard = _QUOTED.sub(
        lambda match: match[0] if match[1] is None else _quote(match[1].replace('""', '"')), condition
    )
    names = dict.fromkeys(name for _, parameters in runs for name in parameters or ())
    # SQLite has at most 2,000 columns, so the table has only the parameters whose names are in the condition.
    used = [name for name in names if _quote(_column(name))[1:-1].lower() in standard.lower()]
    rows = ((*_facts(row, now_s), *map((values or {}).get, used)) for row, values in runs)
    try:
        with closing(_table(map(_column, used), rows)) as database:
            # SQL of the user by intent: the authorizer limits its effect.
            return frozenset(run for (run,) in database.execute(f"SELECT id FROM runs WHERE (\n{standard}\n)"))  # noqa: S608
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise UsageError(f"condition {condition!r}: {error}", hint=_hint(condition, [*map(_column, names)])) from error


def _table(parameters: Iterable[str], rows: Iterable[Sequence[str | float | None]]) -> sqlite3.Connection:
    """Return a database with the table `runs`, which a statement can only read."""
    columns = [*(f"{name} TEXT" for name in _TEXTS), *(f"{_quote(name)} NUMERIC" for name in (*_NUMBERS, *parameters))]
    database = sqlite3.connect(":memory:")
    database.execute(f"CREATE TABLE runs ({', '.join(columns)})")
    marks = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO runs VALUES ({marks})", rows)  # noqa: S608 — question marks alone
    database.set_authorizer(_authorize)
    return database


def _authorize(action: int, first: str | None, *_: str | None) -> int:
    is_read = action == sqlite3.SQLITE_READ and first == "runs"
    return (
        sqlite3.SQLITE_OK
        if is_read or action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION)
        else sqlite3.SQLITE_DENY
    )


def _facts(row: RunRow, now_s: float) -> tuple[str | float | None, ...]:
    """Return the values of `_TEXTS` and `_NUMBERS` for a run."""
    created = f"{dt.datetime.fromtimestamp(row.created_s, dt.UTC):%Y-%m-%d %H:%M:%S}" if row.created_s else None
    state = "damaged" if row.problem else row.standing
    parent = row.parent.run if row.parent is not None else None
    described = (row.sweep, row.outcome, row.note_outcome, row.why, "\n".join(row.notes) or None)
    age_s = now_s - row.created_s if row.created_s else None
    numbers = (row.last_step, row.total_steps, row.attempts, row.loss, row.lowest_loss, row.lowest_step)
    who = (row.name, row.user, row.host)
    return row.id, *who, state, created, row.snapshot, row.reproduces, parent, *described, age_s, *numbers


def _column(parameter: str) -> str:
    """Return the column of a parameter. A config key with the name of a run's column gets a prefix."""
    return f"config.{parameter}" if parameter.lower() in (*_TEXTS, *_NUMBERS) else parameter


def _quote(name: str) -> str:
    """Return an identifier in backquotes. SQLite reads an unknown name in double quotes as a text."""
    return f"`{name.replace('`', '``')}`"


def _hint(condition: str, parameters: Sequence[str]) -> str:
    """Return the columns of a run, and the columns whose names, or their last parts, are similar to unknown words."""
    columns = {name.lower(): name for name in (*_TEXTS, *_NUMBERS, *parameters)}
    words = [word for word in re.findall(r"[\w.@:/-]*\w", condition.lower()) if word not in columns]
    near = [
        name
        for word in words
        for name in (*(c for c in columns if c.endswith(f".{word}")), *difflib.get_close_matches(word, columns, 2, 0.7))
    ]
    shown = [f'"{columns[name]}"' for name in dict.fromkeys(near)][:_NEAR]
    similar = f"Columns with a similar name: {', '.join(shown)}. " if shown else ""
    return f"{similar}A run has {', '.join((*_TEXTS, *_NUMBERS))}, and its parameters, in double quotes."
