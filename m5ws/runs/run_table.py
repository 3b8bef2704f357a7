"""The newest runs that meet a condition, with losses, notes and the parameters in which they differ.

Cost: one listing of the run index, one of the runs and one of the notes, whatever the number of runs. Parameters,
losses and notes are read of the shown runs. A condition reads more, of runs that can still meet it: first the state,
then notes and parameters, at last summaries of attempts.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from m5ws.progress import Progress
from m5ws.repository import concurrency, notes, runs
from m5ws.repository.repository import Repository
from m5ws.runs import listing, parameters, where
from m5ws.runs.listing import RunRow
from m5ws.runs.run_values import COSTS, NAMES, RunSource, RunValues
from m5ws.runs.where import Condition, Known, NotRead


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """The shown runs, newest first, each followed by its replays; `more` is the number of older matching runs.

    `unreadable` is the number of damaged runs for which a condition could not be tested.
    """

    rows: tuple[RunRow, ...]
    more: int = 0
    unreadable: int = 0


def select(
    repo: Repository,
    condition: str | None = None,
    limit: int = 0,
    progress: Progress | None = None,
    now_s: float | None = None,
) -> RunTable:
    """Return the newest runs that meet a condition, at most `limit`; all of them if it is 0. Removed ones are left out.

    Raises InvalidCondition if the condition cannot be understood, or has a name that no run has.
    """
    parsed = where.parse(condition) if condition is not None else None
    source = RunSource(repo, time.time() if now_s is None else now_s)
    known = source.known
    newest = sorted(known.keys() - source.removed, key=lambda run: (-known[run].created_s, run))
    damaged = [run for run in runs.ids(repo) if run not in known and run not in source.removed]
    if parsed is not None and condition is not None:
        matching, unreadable = _matching(source, parsed, condition, newest, progress)
        damaged, unreadable = [], unreadable + len(damaged)
    else:
        matching, unreadable = newest, 0
    chosen = [*matching[: limit or None], *damaged[: limit or None]]
    rows = listing.list_runs(repo, progress, source.index, chosen)
    left = len(matching) + len(damaged) - len(chosen)
    return RunTable(rows=tuple(_below_originals(_details(source, rows))), more=left, unreadable=unreadable)


def describe(repo: Repository, names: Sequence[str]) -> list[RunRow]:
    """Return the rows of these runs, as in a table of them alone, newest first."""
    source = RunSource(repo, time.time())
    return _details(source, listing.list_runs(repo, None, source.index, names))


def _matching(
    source: RunSource, condition: Condition, text: str, names: list[str], progress: Progress | None
) -> tuple[list[str], int]:
    """Return those of `names` that meet a condition, and the number of runs that could not be read."""
    missing = {comparison.name for comparison in where.names(condition)} - set(NAMES)
    matching: list[str] = []
    unreadable = 0
    results = concurrency.for_each(partial(_meets, source, condition), names)
    for position, (run, (result, unknown)) in enumerate(zip(names, results, strict=True)):
        matching += [run] * (result is True)
        unreadable += result is None
        missing &= unknown
        if progress:
            progress("searching runs", position, len(names))
    for comparison in where.names(condition):
        if names and comparison.name in missing and unreadable < len(names):
            raise where.invalid(text, comparison.at, f"no run has a value {comparison.name}")
    return matching, unreadable


def _meets(source: RunSource, condition: Condition, run_id: str) -> tuple[bool | None, set[str]]:
    """Return True if a run meets a condition, None if it is unreadable; and the names that it has no value of."""
    values = RunValues(source, run_id)
    unknown: set[str] = set()

    def lookup(cost: int, name: str) -> Known | NotRead:
        value = values.lookup(cost, name)
        (unknown.add if value is None else unknown.discard)(name)
        return value

    try:
        for cost in COSTS:
            if (result := where.evaluate(condition, partial(lookup, cost))) is not None:
                return result, unknown
    except runs.UNREADABLE:
        return None, unknown
    raise AssertionError("all values were read")


def _details(source: RunSource, rows: Iterable[RunRow]) -> list[RunRow]:
    """Return rows with losses, notes and changed parameters."""
    pairs = list(concurrency.for_each(partial(_detailed, source), rows))
    changed = parameters.differing([found for _, found in pairs if found is not None])
    return [
        msgspec.structs.replace(row, changes={name: found.get(name) for name in changed}) if found is not None else row
        for row, found in pairs
    ]


def _detailed(source: RunSource, row: RunRow) -> tuple[RunRow, Mapping[str, str] | None]:
    """Return a row with its losses and notes, and the run's parameters; as it is for a damaged run."""
    if row.problem is not None:
        return row, None
    values = RunValues(source, row.id, row)
    try:
        losses, inputs = values.losses, values.parameters
        row = msgspec.structs.replace(
            row,
            loss=losses.last,
            lowest_loss=losses.lowest,
            lowest_step=losses.lowest_step,
            why=notes.why(values.notes),
            note_outcome=notes.outcome(values.notes),
        )
    except runs.UNREADABLE as error:
        return msgspec.structs.replace(row, problem=str(error)), None
    return row, inputs


def _below_originals(rows: list[RunRow]) -> Iterable[RunRow]:
    """Yield rows so that the replays of a run follow it. A replay of a replay has its own place."""
    originals = {row.id for row in rows if row.reproduces is None}
    replays: dict[str, list[RunRow]] = {}
    for row in rows:
        if row.reproduces is not None and row.reproduces in originals:
            replays.setdefault(row.reproduces, []).append(row)
    for row in rows:
        if row.reproduces not in originals:
            yield row
            yield from replays.get(row.id, ())
