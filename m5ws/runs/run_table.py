"""The newest runs, with losses, notes and the parameters in which they differ.

Cost: the listing of the run index as far as rows are shown, and listings of notes and removals, whatever the number of
runs. Only facts that the index lacks, and notes, are read of each shown run.
"""

import itertools
import time
from collections.abc import Container, Iterable, Mapping, Sequence
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
    """The shown runs, newest first, each followed by its replays; `more` if there are older runs."""

    rows: tuple[RunRow, ...]
    more: bool = False


def newest(
    repo: Repository, limit: int = 0, progress: Progress | None = None, condition: str | None = None
) -> RunTable:
    """Return the newest runs that meet a condition in SQL (`where`), at most `limit`; all of them if it is 0.

    Removed runs are left out. Raises UsageError for an invalid condition.
    """
    removed, most = removals.removed_runs(repo), limit if condition is None else 0
    present = ((run, facts) for run, facts in run_index.newest(repo) if facts.created and run not in removed)
    index = dict(itertools.islice(present, most + 1 if most else None))
    chosen = [*index]
    if not most or len(index) <= most:
        chosen = _choose(repo, index, removed, most)
    described = _describe(repo, index, listing.list_runs(repo, progress, index, chosen[: most or None]))
    if condition is not None:
        kept = where.matching(described, condition, time.time())
        described = [pair for pair in described if pair[0].id in kept]
    shown = described[: limit or None]
    more = len(shown) < len(described) or len(chosen) > (most or len(chosen))
    return RunTable(rows=tuple(_below_originals(_with_changes(shown))), more=more)


def _choose(repo: Repository, index: Mapping[str, RunFacts], removed: Container[str], most: int) -> list[str]:
    """Return the runs that are not removed, the newest first, runs without keys in the index too, then damaged runs.

    Damaged runs come within the first `most`.
    """
    known = runs.facts(repo, index)
    readable = sorted((run for run in known if run not in removed), key=lambda run: (-known[run].created_s, run))
    damaged = [run for run in runs.ids(repo) if run not in known and run not in removed]
    place = max(0, most - len(damaged)) if most else len(readable)
    return [*readable[:place], *damaged, *readable[place:]]


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
        facts = index.get(row.id, RunFacts())
        losses = run_losses.of_run(repo, row.id, facts, row.attempts)
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
        return row, facts.parameters or _parameters(repo, reader, row.id)
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
