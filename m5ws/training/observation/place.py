"""The place of an observed attempt in its run: the step after which it continues.

m5ws does not know the step of a script's own checkpoint. The line `m5ws.resumed_at(step)` in the script states it. Else
the optimizers' own count of updates proves it, or a state equal to that before step 1, for a start from the beginning.
Invariant: a place is proven, or the attempt is unplaced. Values of steps prove nothing, since batches return in epochs.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from m5ws.records.ledger import Observation, State, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_SEARCHED = 100_000
"""Steps of an attempt, the newest first, whose counts of updates are read."""
_FIRST = 1000
"""Events of an attempt that have its place, its first states, and nearly all of its modules and optimizers."""


def settings(label: str) -> str:
    """Return the name of the digest of an optimizer's settings."""
    return f"{label} settings"


class Earlier(msgspec.Struct):
    """Records of a rank's earlier attempts.

    `updates` has the step of each number of updates of an optimizer, by its label; 0 if two steps have the number.
    `offsets` has the differences between steps and updates of each label that every step has. `kinds` has the labels of
    the optimizers of each kind of step, `parts` descriptions by label. `initial` is the state before step 1, unless the
    first steps left it as it was.
    """

    last: int = 0
    updates: dict[str, dict[int, int]] = {}
    offsets: dict[str, set[int]] = {}
    kinds: set[frozenset[str]] = set()
    parts: dict[str, str] = {}
    initial: dict[str, str] = {}


def load(repo: Repository, run: str, attempt: int, rank: int) -> Earlier:
    """Return the records of the attempts before one. Raises CorruptObject for a broken chain."""
    earlier = Earlier()
    steps: dict[int, Step] = {}
    for number in range(1, attempt):
        events = (event for _, event in ledger.read_events(repo, run, number, (str(rank),)))
        is_placed = _add_begin(earlier, itertools.islice(events, _FIRST))
        newest = itertools.islice(_backwards(repo, run, number, rank, earlier.parts), _SEARCHED)
        steps |= {step.step: step for step in newest if is_placed}
    for step in steps.values():
        _add_step(earlier, step)
    earlier.last = max(steps, default=0)
    earlier.offsets = {
        label: {step - count for count, step in numbers.items()}
        for label, numbers in earlier.updates.items()
        if len(numbers) == len(steps)
    }
    return earlier


def find(earlier: Earlier, first: Step, initial: Mapping[str, str]) -> int | None:
    """Return the step after which an attempt continues, by its first step and the state before it; None: unplaced."""
    if earlier.initial and all(earlier.initial.get(name) == value for name, value in initial.items()):
        return 0
    # An optimizer that has done one update may be new, in the middle of a training.
    counted = {label: count for label, count in first.updates.items() if count > 1}
    if earlier.last == 0:
        return None if counted else 0
    # An optimizer that equals no earlier optimizer, or several of the earlier optimizers, has a new label.
    places = {_by_updates(earlier, label, count) for label, count in counted.items() if label in earlier.updates}
    return places.pop() if len(places) == 1 else None


def _by_updates(earlier: Earlier, label: str, count: int) -> int | None:
    """Return the place of the step with this number of updates of an optimizer, None if it is unknown."""
    steps = earlier.updates[label]
    if 0 in steps.values():
        return None  # The script has reset the count.
    if count in steps:
        return steps[count] - 1
    # An optimizer that is in every step counts the steps. Some of them may have been lost with their machine.
    offsets = earlier.offsets.get(label, set())
    return count - 1 + min(offsets) if len(offsets) == 1 else None


def _add_begin(earlier: Earlier, events: Iterable[object]) -> bool:
    """Add the first events of an attempt. Return True if the attempt is placed."""
    is_placed, states = False, list[State]()
    for event in events:
        if isinstance(event, Observation):
            earlier.parts = event.parts | earlier.parts
            is_placed |= event.after is not None
        elif isinstance(event, State):
            states.append(event)
    if is_placed and len(states) > 1 and states[0].step == 0:
        before, after = states[0].tensors, states[1].tensors
        if any(after.get(name, value) != value for name, value in before.items()):
            earlier.initial = before
    return is_placed


def _add_step(earlier: Earlier, step: Step) -> None:
    named = (name for name in step.digests if name.endswith(settings("")))
    earlier.kinds.add(frozenset(name.removesuffix(settings("")) for name in named))
    for label, count in step.updates.items():
        numbers = earlier.updates.setdefault(label, {})
        numbers[count] = 0 if count in numbers else step.step


def _backwards(repo: Repository, run: str, attempt: int, rank: int, parts: dict[str, str]) -> Iterator[Step]:
    """Yield the steps of a rank in an attempt, the newest first, and add later descriptions to `parts`."""
    nodes = ledger.nodes(repo, run, attempt)
    for batch in (batch for node in nodes for batch in ledger.backwards(repo, run, attempt, node)):
        for _, event in reversed([*ledger.decode(batch, (str(rank),))]):
            if isinstance(event, Step):
                yield event
            elif isinstance(event, Observation):
                parts |= event.parts | parts
