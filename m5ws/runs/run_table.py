"""The newest runs, with losses, notes and the parameters in which they differ.

Cost: one listing of the run index, one of the runs and one of the notes, whatever the number of runs. Parameters,
losses and notes are read of the shown runs alone.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from m5ws.errors import NotFound
from m5ws.progress import Progress
from m5ws.repository import concurrency, removals
from m5ws.repository.references import notes, parameters, run_index, runs
from m5ws.repository.references.parameters import ParameterReader
from m5ws.repository.references.run_index import RunFacts
from m5ws.repository.repository import Repository
from m5ws.runs import listing, run_losses, where
from m5ws.runs.listing import RunRow
from m5ws.runs.where import DescribedRun


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """The shown runs, newest first, each followed by its replays; `more` is the number of older runs."""

    rows: tuple[RunRow, ...]
    more: int = 0


def newest(
    repo: Repository, limit: int = 0, progress: Progress | None = None, condition: str | None = None
) -> RunTable:
    """Return the newest runs that meet a condition in SQL (`where`), at most `limit`; all of them if it is 0.

    Removed runs are left out. Raises UsageError for an invalid condition.
    """
    index = run_index.load(repo)
    known, removed = runs.facts(repo, index), removals.removed_runs(repo)
    readable = sorted(known.keys() - removed, key=lambda run: (-known[run].created_s, run))
    damaged = [run for run in runs.ids(repo) if run not in known and run not in removed]
    count = len(readable) + len(damaged)
    end = (limit or None) if condition is None else None
    described = _describe(repo, index, listing.list_runs(repo, progress, index, [*readable[:end], *damaged[:end]]))
    if condition is not None:
        kept = where.matching(described, condition, time.time())
        count, described = len(kept), [pair for pair in described if pair[0].id in kept][: limit or None]
    return RunTable(rows=tuple(_below_originals(_with_changes(described))), more=count - len(described))


def describe(repo: Repository, names: Sequence[str]) -> list[RunRow]:
    """Return the rows of these runs, as in a table of them alone, newest first."""
    index = run_index.load(repo)
    return _with_changes(_describe(repo, index, listing.list_runs(repo, None, index, names)))


def _describe(repo: Repository, index: Mapping[str, RunFacts], rows: Iterable[RunRow]) -> list[DescribedRun]:
    """Return rows with losses and notes, each with the parameters of its run."""
    detail = partial(_detail_row, repo, ParameterReader(repo), index, notes.annotated_runs(repo))
    return list(concurrency.for_each(detail, rows))


def _with_changes(described: Sequence[DescribedRun]) -> list[RunRow]:
    """Return the rows with the parameters that are not the same in all of them."""
    changed = parameters.differing([values for _, values in described if values is not None])
    return [
        msgspec.structs.replace(row, changes={name: values.get(name) for name in changed})
        if values is not None
        else row
        for row, values in described
    ]


def _detail_row(
    repo: Repository, reader: ParameterReader, index: Mapping[str, RunFacts], annotated: Iterable[str], row: RunRow
) -> DescribedRun:
    """Return a row with its losses and notes, and the run's parameters; as it is for a damaged run."""
    if row.problem is not None:
        return row, None
    try:
        losses = run_losses.of_run(repo, row.id, index.get(row.id, RunFacts()), row.attempts)
        written = notes.load(repo, row.id) if row.id in annotated else []
        row = msgspec.structs.replace(
            row,
            loss=losses.last,
            lowest_loss=losses.lowest,
            lowest_step=losses.lowest_step,
            why=notes.why(written),
            note_outcome=notes.outcome(written),
            notes=tuple(note.text for note in written if note.kind == "note"),
        )
        return row, _parameters(repo, reader, row.id)
    except runs.UNREADABLE as error:
        return msgspec.structs.replace(row, problem=str(error)), None


def _parameters(repo: Repository, reader: ParameterReader, run_id: str) -> Mapping[str, str]:
    """Return a run's parameters; without its snapshot in the store, the parameters of its launch alone."""
    run = runs.load(repo, run_id)
    try:
        return reader.of_run(run)
    except NotFound:
        return parameters.launch(run.spec)


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
