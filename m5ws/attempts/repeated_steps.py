"""Comparison of the steps that a resumed attempt repeats with the records of earlier attempts.

A resume goes back to a checkpoint, so the steps between that checkpoint and the kill are done twice. After an exact
restore they are equal in bits. If they differ, this reports the first such step at once.
"""

import logging

from m5ws.errors import M5Error
from m5ws.records.ledger import AnyEvent, Observation, State, Step
from m5ws.repository.repository import Repository
from m5ws.runs.history import load

_MOST = 3
_OF_PASSES = frozenset(("batch", "output"))
"""Values of a step that are read in its forward passes. Losses are read in its backward passes."""
_log = logging.getLogger(__name__)


def values(step: Step) -> dict[str, str | None]:
    """Return all values of a step that are compared, by name."""
    updates = {f"number of updates of {label}": str(count) for label, count in step.updates.items()}
    return {"batch": step.batch, **step.digests, **step.quantities, **updates}


def names_in_both(before: Step, after: Step) -> list[str]:
    """Return the names of the values that are compared in two records of an observed step, if an attempt was resumed.

    An attempt records the optimizers that it knows. If it did other passes before its first step, such as passes of
    a step that a scaler skipped, the values of passes prove nothing.
    """
    both = [name for name in values(before) if name in values(after)]
    if before.passes == after.passes:
        return both
    return [name for name in both if name not in _OF_PASSES and not name.startswith("loss")]


class RepeatedSteps:
    """Compares the events of one attempt with the events of earlier attempts."""

    def __init__(self, repo: Repository, run: str, attempt: int) -> None:
        earlier = load(repo, run, before_attempt=attempt, folded=False)
        self._earlier = earlier if attempt > 1 else None
        self._messages = 0
        self._observed = False

    def compare(self, rank: str, event: AnyEvent) -> list[str]:
        """Return the differences between this event and the same event of an earlier attempt; mostly none."""
        if isinstance(event, Observation):
            self._observed = True
            if event.unplaced:
                self._earlier = None  # Its steps have no numbers in the run.
        if self._earlier is None or not rank.isdigit() or self._messages >= _MOST:
            return []
        try:
            differences = self._differences(int(rank), event)
        except (M5Error, OSError) as error:
            _log.warning("repeated steps are not compared any more: %s", error)
            self._earlier = None
            return []
        if differences:
            self._messages += 1
        return [f"the resume was not exact: {', '.join(differences)}"] if differences else []

    def _differences(self, rank: int, event: AnyEvent) -> list[str]:
        if isinstance(event, Step):
            return self._step(rank, event)
        return self._state(rank, event) if isinstance(event, State) and not event.restored else []

    def _step(self, rank: int, event: Step) -> list[str]:
        assert self._earlier is not None
        before = self._earlier.steps.get(rank, {}).get(event.step)
        if before is None:
            return []
        old, new = values(before), values(event)
        compared = names_in_both(before, event) if self._observed else old
        names = [name for name in compared if new.get(name) != old[name]]
        return [f"step {event.step} on rank {rank}: {_differ(names)}"] if names else []

    def _state(self, rank: int, event: State) -> list[str]:
        assert self._earlier is not None
        before = self._earlier.states.get(rank, {}).get(event.step)
        if before is None:
            return []
        tensors = [name for name, value in before.tensors.items() if event.tensors.get(name, value) != value]
        generators = [name for name, value in before.generators.items() if event.generators.get(name) != value]
        named = [f"generator {name}" for name in generators] + [f"tensor {name}" for name in tensors[:3]]
        return [f"after step {event.step} on rank {rank}: {_differ(named)}"] if named else []


def _differ(names: list[str]) -> str:
    """Return a clause with values that differ."""
    *others, last = names
    return f"{', '.join(others)} and {last} differ from before" if others else f"{last} differs from before"
