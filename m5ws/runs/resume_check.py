"""Comparison of the steps that a resumed attempt repeats with the records of earlier attempts.

A resume goes back to a checkpoint, so the steps between that checkpoint and the kill are done twice. After an exact
restore they are equal in bits. If they differ, this reports the first such step at once.
"""

import logging
import re

from m5ws.errors import M5Error
from m5ws.records.ledger import AnyEvent, Observation, State, Step, unproven_values
from m5ws.repository.repository import Repository
from m5ws.runs.history import load

_MOST = 3
_OPTIMIZER = re.compile(r"optimizer\d*\.(?!parameter\.)")
_SETTINGS = " settings"
"""End of the name of the digest of an optimizer's settings."""
_RECENT = 1_000
_log = logging.getLogger(__name__)


class RepeatedSteps:
    """Compares one attempt's events with those of earlier attempts. `steps` counts the equal ones."""

    def __init__(self, repo: Repository, run: str, attempt: int) -> None:
        earlier = load(repo, run, before_attempt=attempt, folded=False)
        self._earlier = earlier if attempt > 1 else None
        self._messages = 0
        self._partial: int | None = None
        """The first step of an observed attempt, which may lack values."""
        self.steps = 0

    def compare(self, rank: str, event: AnyEvent) -> list[str]:
        """Return the differences between this event and the same one of an earlier attempt; mostly none."""
        if isinstance(event, Observation) and event.after is not None:
            self._partial = event.after + 1
            if event.guessed:
                self._earlier = None  # The numbers of the steps may be wrong.
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
        if not isinstance(event, State):
            return []
        return self._state(rank, event) if not event.restored else self._restored_state(rank, event)

    def _step(self, rank: int, event: Step) -> list[str]:
        assert self._earlier is not None
        before = self._earlier.steps.get(rank, {}).get(event.step)
        if before is None:
            return []
        self.steps += 1
        old, new = ({"batch": step.batch, **step.digests, **step.quantities} for step in (before, event))
        names = [name for name in old if new.get(name) != old[name]]
        if self._partial is not None:
            unproven = unproven_values(before, event, is_first=event.step == self._partial)
            names = [name for name in names if name not in unproven]
        if any(event.updates.get(label, done) != done for label, done in before.updates.items()):
            names.append("the optimizer's number of updates")
        return [f"step {event.step} on rank {rank}: {_differ(names)}"] if names else []

    def _restored_state(self, rank: int, event: State) -> list[str]:
        """Return the optimizer's state that an observed script did not restore from its own checkpoint."""
        assert self._earlier is not None
        if self._partial is None or event.step == 0:
            return []
        states = self._earlier.states.get(rank, {})
        before = next((states[step] for step in reversed([*states]) if 0 < step <= event.step), None)
        # Without a forward pass before the optimizer's call, as in Lightning, its state has other names.
        count = sum(_OPTIMIZER.match(name) is not None for name in before.tensors) if before is not None else 0
        if not count or any(map(_OPTIMIZER.match, event.tensors)) or self._begins(rank, event.step + 1):
            return []
        return [f"after step {event.step} on rank {rank}: the optimizer has no state, and had {count} tensors before"]

    def _begins(self, rank: int, step: int) -> bool:
        """Return True if the optimizers of a step did none of the steps before it: another stage of the training."""
        assert self._earlier is not None
        steps = self._earlier.steps.get(rank, {})
        first = steps.get(step)
        labels = {name for name in first.digests if name.endswith(_SETTINGS)} if first is not None else set[str]()
        before = (steps.get(number) for number in range(max(1, step - _RECENT), step))
        return bool(labels) and not any(labels & one.digests.keys() for one in before if one is not None)

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
