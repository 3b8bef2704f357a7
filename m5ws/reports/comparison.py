"""Several runs beside each other: changed inputs against results. The other runs are compared with the first run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from m5ws.diff import diff
from m5ws.errors import UsageError
from m5ws.progress import Progress
from m5ws.records.verdict import Change, Divergence
from m5ws.reports import curves
from m5ws.reports.curves import Curves
from m5ws.repository import concurrency
from m5ws.repository.repository import Repository
from m5ws.reproduce.compare import Comparison, compare_histories
from m5ws.runs import history, run_table
from m5ws.runs.listing import RunRow
from m5ws.runs.state import load as load_state
from m5ws.wording.comparisons import label

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


class ComparedRun(RunRow, frozen=True, kw_only=True):
    """A run with its results. `quantities` are exact texts of the last step of rank 0.

    `first` is the first difference from the first run, by the records of rank 0; None without one. `compared` is the
    number of steps that both recorded.
    """

    quantities: dict[str, str]
    first: Divergence | None
    compared: int

    @property
    def difference(self) -> str:
        """The first difference from the first run, for people."""
        if self.first is None:
            return f"none in {self.compared:,} common steps" if self.compared else "no common step recorded"
        return f"step {self.first.step}, {label(self.first)}"


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and the inputs in which they differ; inputs that cannot change bits are last."""

    runs: tuple[ComparedRun, ...]
    inputs: tuple[Input, ...]


def compare(
    repo: Repository, names: Sequence[str], progress: Progress | None = None
) -> tuple[RunComparison, list[Curves]]:
    """Return the comparison of runs, and the curves of each. Raises UsageError, NotFound, CorruptObject.

    Of the ledgers, rank 0's are read, one run after another.
    """
    if not 2 <= len(set(names)) <= MOST_RUNS:
        raise UsageError(f"2 to {MOST_RUNS} runs can be compared, not {len(set(names))}")
    rows = {row.id: row for row in run_table.describe(repo, names)}
    if (damaged := next((row for row in rows.values() if row.problem), None)) is not None:
        raise UsageError(f"run {damaged.id} is damaged: {damaged.problem}", hint="`m5ws fsck` lists all damage.")
    inputs = sorted(_inputs(repo, names), key=lambda change: change.rating == "cannot")
    compared, drawn = [], []
    first = None
    for position, name in enumerate(names):
        if progress:
            progress("reading ledgers", position, len(names))
        # Rank 0 has the fingerprints of all tensors.
        done = history.load(repo, name, ranks={"0"})
        first = first or done
        compared.append(_compared(repo, rows[name], compare_histories(first, done)))
        drawn.append(curves.of_steps(done.steps.get(0, {})))
    return RunComparison(runs=tuple(compared), inputs=tuple(inputs)), drawn


def _compared(repo: Repository, row: RunRow, comparison: Comparison) -> ComparedRun:
    newest = load_state(repo, row.id).newest
    return ComparedRun(
        **msgspec.structs.asdict(row),
        quantities=newest.quantities if newest is not None else {},
        first=comparison.first(),
        compared=comparison.count_compared(),
    )


def _inputs(repo: Repository, names: Sequence[str]) -> Iterator[Input]:
    """Yield the inputs in which any run differs from the first run."""
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
