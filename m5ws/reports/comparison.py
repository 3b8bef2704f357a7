"""Several runs beside each other: changed inputs against results. The first run is the one that others differ from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from m5ws.diff import diff
from m5ws.errors import UsageError
from m5ws.progress import Progress
from m5ws.records.note import NoteOutcome
from m5ws.records.verdict import Change, Divergence
from m5ws.reports import recorded
from m5ws.reports.curves import Curves
from m5ws.repository import concurrency
from m5ws.repository.repository import Repository
from m5ws.runs import run_table
from m5ws.runs.listing import RunRow
from m5ws.runs.state import load as load_state

MOST_RUNS = 50


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """An input that is not the same in all runs, with its value in each run, in their order; None if it has none.

    `rating` is the gravest effect on bits among the runs.
    """

    part: str
    name: str
    values: tuple[str | None, ...]
    rating: str

    @property
    def label(self) -> str:
        """The input as people name it: a config key alone, others with their part."""
        return self.name if self.part == "config" else f"{self.part} {self.name}"


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run. `quantities` are exact texts of the last step of rank 0.

    `first` is the first difference from the first run in `compared` steps that both recorded; None without one.
    """

    id: str
    name: str | None
    snapshot: str
    state: str
    last_step: int
    total_steps: int | None
    loss: float | None
    lowest_loss: float | None
    lowest_step: int | None
    quantities: dict[str, str]
    reproduces: str | None
    verdict: str | None
    why: str | None
    outcome: NoteOutcome | None
    first: Divergence | None
    compared: int

    @property
    def difference(self) -> str:
        """The first difference from the first run, for people."""
        if self.first is None:
            return f"none in {self.compared:,} common steps" if self.compared else "no common step recorded"
        return f"step {self.first.step}, {self.first.quantity}"


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and the inputs in which they differ; those that cannot change bits are counted in `harmless`, and last."""

    runs: tuple[ComparedRun, ...]
    inputs: tuple[Input, ...]
    harmless: int


def compare(
    repo: Repository, names: Sequence[str], progress: Progress | None = None
) -> tuple[RunComparison, list[Curves]]:
    """Return the comparison of runs, and the curves of each. Raises UsageError, NotFound, CorruptObject.

    Of the ledgers, rank 0's are read, one run after the other.
    """
    refuse_number(names)
    rows = {row.id: row for row in run_table.describe(repo, names)}
    if (damaged := next((row for row in rows.values() if row.problem), None)) is not None:
        raise UsageError(f"run {damaged.id} is damaged: {damaged.problem}", hint="`m5ws fsck` lists all damage.")
    inputs = sorted(_inputs(repo, names), key=lambda change: change.rating == "cannot")
    compared, drawn = [], []
    first = recorded.load(repo, names[0])
    for position, name in enumerate(names):
        if progress:
            progress("reading ledgers", position, len(names))
        history = first if position == 0 else recorded.load(repo, name)
        difference = (None, 0) if position == 0 else recorded.first_difference(first, history)
        compared.append(_compared(repo, rows[name], difference))
        drawn.append(recorded.curves_of(history))
    harmless = sum(change.rating == "cannot" for change in inputs)
    return RunComparison(runs=tuple(compared), inputs=tuple(inputs), harmless=harmless), drawn


def refuse_number(names: Sequence[str]) -> None:
    """Raise UsageError unless there are 2 to 50 different runs."""
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"run {double} is given twice")
    if not 2 <= len(names) <= MOST_RUNS:
        raise UsageError(f"2 to {MOST_RUNS} runs can be compared, not {len(names)}")


def _compared(repo: Repository, row: RunRow, difference: tuple[Divergence | None, int]) -> ComparedRun:
    newest = load_state(repo, row.id).newest
    return ComparedRun(
        id=row.id,
        name=row.name,
        snapshot=row.snapshot or "",
        state=row.standing,
        last_step=row.last_step,
        total_steps=row.total_steps,
        loss=row.loss,
        lowest_loss=row.lowest_loss,
        lowest_step=row.lowest_step,
        quantities=newest.quantities if newest is not None else {},
        reproduces=row.reproduces,
        verdict=row.outcome,
        why=row.why,
        outcome=row.note_outcome,
        first=difference[0],
        compared=difference[1],
    )


def _inputs(repo: Repository, names: Sequence[str]) -> Iterator[Input]:
    """Yield the inputs in which any run differs from the first one."""
    changed = list(concurrency.for_each(partial(_changes, repo, names[0]), names[1:]))
    for part, name in dict.fromkeys(key for changes in changed for key in changes):
        known = [changes.get((part, name)) for changes in changed]
        some = [change for change in known if change is not None]
        old = some[0].old
        values = (old, *(old if change is None else change.new for change in known))
        yield Input(part=part, name=name, values=values, rating=_gravest(some))


def _changes(repo: Repository, first: str, other: str) -> Mapping[tuple[str, str], Change]:
    return {(change.part, change.name): change for change in diff.between_runs(repo, first, other)}


def _gravest(changes: Iterable[Change]) -> str:
    ratings = {change.rating for change in changes}
    return next(rating for rating in ("does", "can", "cannot") if rating in ratings)
