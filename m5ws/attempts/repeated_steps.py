"""Comparison of the steps that a resumed attempt repeats with the records of earlier attempts.

A resume goes back to a checkpoint, so the steps between that checkpoint and the kill are done twice. After an exact
restore they are equal in bits. If they differ, this reports the first such step of each rank at once.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from m5ws.errors import M5Error
from m5ws.records.ledger import AnyEvent, Observation, State, Step
from m5ws.records.sample_ids import parse_ranges
from m5ws.repository.repository import Repository
from m5ws.runs.history import History, load

_TENSORS = 3
"""Number of tensors that a difference names."""
_OF_PASSES = frozenset(("batch", "output"))
"""Values of a step that are read in its forward passes. Losses are read in its backward passes."""
_log = logging.getLogger(__name__)


def values(step: Step) -> dict[str, str | None]:
    """Return all values of a step that are compared, by name."""
    updates = {f"number of updates of {label}": str(count) for label, count in step.updates.items()}
    samples = {f"samples of {name}": ranges for name, ranges in step.samples.items()}
    return {"batch": step.batch, **samples, **step.digests, **step.quantities, **updates}


def names_in_both(before: Step, after: Step) -> list[str]:
    """Return the names of the values that are compared in two records of an observed step, if an attempt was resumed.

    An attempt records the optimizers that it knows. If it did other passes before its first step, such as passes of
    a step that a scaler skipped, the values of passes prove nothing.
    """
    both = [name for name in values(before) if name in values(after)]
    if before.passes == after.passes:
        return both
    return [name for name in both if name not in _OF_PASSES and not name.startswith("loss")]


class Difference(NamedTuple):
    """The first step that `ranks` repeated with other values, and the names of the values."""

    step: int
    ranks: tuple[int, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        where = f"step {self.step} on rank{'s' if len(self.ranks) > 1 else ''} {ranks}"
        *others, last = self.names
        differ = f"{', '.join(others)} and {last} differ" if others else f"{last} differs"
        return f"the resume was not exact: {where}: {differ} from before"


class RepeatedSteps:
    """Compares the events of one attempt with the events of earlier attempts, up to each rank's first differing step.

    The values of that step and the state after it are events of their own, and both are compared.
    """

    def __init__(self, repo: Repository, run: str, attempt: int) -> None:
        earlier = load(repo, run, before_attempt=attempt, folded=False)
        self._earlier = earlier if attempt > 1 else None
        self._first: dict[int, int] = {}
        """The first differing step of each rank."""
        self._new: dict[tuple[int, int], list[str]] = {}
        """Names of different values by step and rank."""
        self._observed = False
        self._moved: list[tuple[int, str]] = []
        self._has_position = False

    def compare(self, rank: str, event: AnyEvent) -> None:
        """Compare an event with the same event of an earlier attempt. `take` returns the differences."""
        if isinstance(event, Observation):
            self._observed = True
            if event.unplaced:
                self._earlier = None  # Its steps have no numbers in the run.
        if self._earlier is None or not rank.isdigit() or not isinstance(event, (Step, State)):
            return
        number = int(rank)
        if number == 0 and isinstance(event, Step) and event.samples and not self._has_position:
            self._has_position = True
            self._moved += ((event.step, message) for message in moved_positions(self._earlier, event))
        if event.step > self._first.get(number, event.step):
            return
        try:
            differences = self._step(number, event) if isinstance(event, Step) else self._state(number, event)
        except (M5Error, OSError) as error:
            _log.warning("repeated steps are not compared any more: %s", error)
            self._earlier = None
            return
        if differences:
            # The state of a step may arrive after the next step.
            self._first[number] = event.step
            self._new.setdefault((event.step, number), []).extend(differences)

    def take(self) -> list[Difference]:
        """Return the new first differences, each of all ranks with the same difference. Generators come first."""
        ranks: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for (step, rank), names in sorted(self._new.items()):
            names.sort(key=lambda name: not name.startswith("generator "))
            ranks.setdefault((step, tuple(names)), []).append(rank)
        self._new = {}
        return [Difference(step, tuple(named), names) for (step, names), named in ranks.items()]

    def take_moved(self) -> list[tuple[int, str]]:
        """Return the step, and a message, for each source of which the resume skipped or repeated samples."""
        moved, self._moved = self._moved, []
        return moved

    def _step(self, rank: int, event: Step) -> list[str]:
        assert self._earlier is not None
        before = self._earlier.steps.get(rank, {}).get(event.step)
        if before is None:
            return []
        old, new = values(before), values(event)
        compared = names_in_both(before, event) if self._observed else old
        return [name for name in compared if new.get(name) != old[name]]

    def _state(self, rank: int, event: State) -> list[str]:
        assert self._earlier is not None
        before = self._earlier.states.get(rank, {}).get(event.step)
        if before is None or event.restored:
            return []
        tensors = [name for name, value in before.tensors.items() if event.tensors.get(name, value) != value]
        generators = [name for name, value in before.generators.items() if event.generators.get(name) != value]
        more = [f"{len(tensors) - _TENSORS} more tensors"] if len(tensors) > _TENSORS else []
        named = [f"tensor {name}" for name in tensors[:_TENSORS]]
        return [*(f"generator {name}" for name in generators), *named, *more]


def moved_positions(earlier: History, step: Step) -> Iterator[str]:
    """Yield a message for each source whose first sample after a resume is not the sample that is due.

    Due is the first sample that the step consumed before. If it was not done before, due is the position after the step
    before it, for a source whose samples are consumed without gaps.
    """
    steps = earlier.steps.get(0, {})
    again, previous = steps.get(step.step), steps.get(step.step - 1)
    description = earlier.orders[max(earlier.orders)].description if earlier.orders else {"sources": []}
    for source in description["sources"]:
        name, samples = source["name"], source["samples"]
        has_gaps = source["pack"] or source["keep"] or description["without"]
        if name not in step.samples:
            continue
        if again is not None and name in again.samples:
            due = _bounds(again.samples[name], samples)[0]
        elif again is None and previous is not None and name in previous.samples and not has_gaps:
            due = _bounds(previous.samples[name], samples)[1]
        else:
            continue
        moved = _bounds(step.samples[name], samples)[0] - due
        if moved:
            expected = f"{due // samples}:{due % samples}"
            done = "skipped" if moved > 0 else "repeated"
            yield (
                f"the resume {done} {abs(moved)} samples of {name}: step {step.step} consumed {step.samples[name]}, "
                f"and {expected} is the next"
            )


def _bounds(ranges: str, samples: int) -> tuple[int, int]:
    """Return the first position of ranges, and the position after the last, counted from the start of epoch 0."""
    parsed = parse_ranges(ranges)
    (first, start, _), (last, _, stop) = parsed[0], parsed[-1]
    return first * samples + start, last * samples + stop
