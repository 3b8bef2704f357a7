"""Values of runs by name, each read when it is needed and at most once: for conditions and tables.

The costs of reading, from the cheapest: facts of the run index (0), the state of a run (1), notes and parameters (2),
and the results of its last step (3).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from m5ws.errors import CorruptObject, NotFound
from m5ws.records.ledger import Step
from m5ws.records.note import Note
from m5ws.records.run import Run
from m5ws.repository import notes, removals, run_index, runs
from m5ws.repository.ledger import ledger, losses
from m5ws.repository.ledger.losses import LossRange, LossTracker
from m5ws.repository.repository import Repository
from m5ws.repository.run_index import RunCreation, RunFacts
from m5ws.runs import listing, parameters, state
from m5ws.runs.listing import RunRow
from m5ws.runs.parameters import ParameterReader
from m5ws.runs.where import NOT_READ, Known, NotRead

COSTS = range(4)
_MOST_BATCHES = 256
"""A running attempt with a longer ledger of rank 0 has no lowest loss until it ends."""


class RunSource:
    """The facts of all runs, listed once, and the readers of other values."""

    def __init__(self, repo: Repository, now_s: float) -> None:
        self.repo, self.now_s = repo, now_s
        self.index: Mapping[str, RunFacts] = run_index.load(repo)
        self.known: Mapping[str, RunCreation] = runs.facts(repo, self.index)
        self.reader = ParameterReader(repo)
        self.annotated = notes.annotated_runs(repo)
        self.removed = removals.removed_runs(repo)


class RunValues:
    """The values of one run, each read when it is needed."""

    def __init__(self, source: RunSource, run_id: str, row: RunRow | None = None) -> None:
        self.source, self._repo, self._row = source, source.repo, row
        self.id: str = run_id
        self.creation: RunCreation = source.known[run_id]
        self._facts = source.index.get(run_id, RunFacts())

    @cached_property
    def row(self) -> RunRow:
        """The run's row in a list. Raises CorruptObject if the run is damaged."""
        if self._row is not None:
            return self._row
        (row,) = listing.list_runs(self._repo, None, self.source.index, [self.id])
        if row.problem is not None:
            raise CorruptObject(row.problem)
        return row

    @cached_property
    def record(self) -> Run:
        return runs.load(self._repo, self.id)

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The run's parameters; empty if its snapshot is not in the store."""
        try:
            return self.source.reader.of_run(self.record)
        except NotFound:
            return parameters.launch(self.record.spec)

    @cached_property
    def notes(self) -> list[Note]:
        return notes.load(self._repo, self.id) if self.id in self.source.annotated else []

    @cached_property
    def losses(self) -> LossRange:
        """The last loss of the newest attempt that has one, and the lowest of all attempts."""
        known, joined = self._facts.losses, LossRange()
        attempts = known if len(known) >= self.row.attempts else ledger.attempts(self._repo, self.id)
        for attempt in sorted(attempts):
            joined = _joined(joined, known.get(attempt) or recorded_losses(self._repo, self.id, attempt))
        return joined

    @cached_property
    def quantities(self) -> Mapping[str, str]:
        """The quantities of the last step of the newest attempt."""
        newest = max(ledger.attempts(self._repo, self.id), default=None)
        return {} if newest is None else state.attempt_of(self._repo, self.id, newest).quantities

    def lookup(self, cost: int, name: str) -> Known | NotRead:
        """Return the value of a name, as far as `cost` allows to read."""
        if (value := _OF_INDEX.get(name)) is not None:
            return value(self)
        for level, values in ((1, _OF_STATE), (2, _OF_NOTES), (1, _OF_LOSSES)):
            if (value := values.get(name)) is not None:
                return value(self) if cost >= level else NOT_READ
        if cost < 2:
            return NOT_READ
        if (parameter := parameters.find(self.parameters, name)) is not None:
            return parameter
        return losses.number(self.quantities.get(name)) if cost >= 3 else NOT_READ


_Value = Callable[[RunValues], Known]
_OF_INDEX: dict[str, _Value] = {
    "id": lambda run: run.id,
    "name": lambda run: run.creation.name,
    "age": lambda run: run.source.now_s - run.creation.created_s,
    "snapshot": lambda run: run.creation.snapshot,
    "reproduces": lambda run: run.creation.reproduces,
    "parent": lambda run: run.creation.parent,
    "sweep": lambda run: run.creation.sweep,
}
_OF_STATE: dict[str, _Value] = {
    "state": lambda run: run.row.standing,
    "step": lambda run: float(run.row.last_step),
    "attempts": lambda run: float(run.row.attempts),
    "verdict": lambda run: run.row.outcome,
}
_OF_NOTES: dict[str, _Value] = {
    "why": lambda run: notes.why(run.notes),
    "note": lambda run: "\n".join(note.text for note in run.notes) or None,
    "outcome": lambda run: notes.outcome(run.notes),
}
_OF_LOSSES: dict[str, _Value] = {"loss": lambda run: run.losses.last, "best": lambda run: run.losses.lowest}
NAMES = (*_OF_INDEX, *_OF_STATE, *_OF_NOTES, *_OF_LOSSES)
"""The names in conditions that all runs share."""


def recorded_losses(repo: Repository, run_id: str, attempt: int) -> LossRange:
    """Return the losses of an attempt from the ledger of rank 0; of a very long one the last loss alone."""
    tracker, steps = LossTracker(), list[LossRange]()
    for number, batch in enumerate(ledger.backwards(repo, run_id, attempt, "0")):
        if number >= _MOST_BATCHES:
            return LossRange(last=_joined_all(steps).last)
        tracker = LossTracker()
        for event in map(ledger.decode_event, batch.events):
            if isinstance(event, Step):
                tracker.add(event)
        steps.insert(0, tracker.range)
    return _joined_all(steps)


def _joined_all(ranges: Iterable[LossRange]) -> LossRange:
    joined = LossRange()
    for part in ranges:
        joined = _joined(joined, part)
    return joined


def _joined(before: LossRange, after: LossRange) -> LossRange:
    """Return the range of losses of two parts, the first of which came before the other."""
    last = before.last if after.last is None else after.last
    lowest = [losses for losses in (before, after) if losses.lowest is not None]
    best = min(lowest, key=_lowest, default=LossRange())
    return LossRange(last=last, lowest=best.lowest, lowest_step=best.lowest_step)


def _lowest(losses: LossRange) -> float:
    return float("inf") if losses.lowest is None else losses.lowest
