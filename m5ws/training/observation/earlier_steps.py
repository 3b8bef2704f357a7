"""The place of an attempt in its run, if the script goes on from its own checkpoint.

m5ws does not know the step of that checkpoint. But an earlier attempt may have done the first step that this attempt
does. Adam and its relatives count their steps in their state.

Rule: a place is either right or reported as guessed. No difference in steps after a guessed place is judged.
"""

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from m5ws.records.ledger import OF_PASSES, Observation, Step
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_SEARCHED = 100_000
_FIRST = 1000
"""Events of an attempt in which its place is, and nearly all of its modules and optimizers."""
_ALIKE = 2
"""Optimizers that have the same labels in each attempt, if the first one has."""
_UNCLEAR = (
    "the records do not prove which step is the first one of this attempt, so its number is guessed, and it is unknown "
    "whether the script's own resume was exact"
)


class Earlier(msgspec.Struct, frozen=True):
    """Records of a rank's earlier attempts: the last steps, the newest first, and descriptions by label.

    `guessed` are the places of attempts that are not proven, `kinds` the labels of the optimizers of each kind of step.
    """

    steps: list[Step] = []
    kinds: set[frozenset[str]] = set()
    parts: dict[str, str] = {}
    guessed: list[int] = []


class Place(msgspec.Struct, frozen=True):
    """The step `after` which an attempt goes on, and the reason why that is `unclear`, if it is guessed.

    `is_unchecked`: it is the last step of the attempts before, so no step is repeated. `is_restart`: the attempt does
    the first step again.
    """

    after: int
    unclear: str | None = None
    is_unchecked: bool = False
    is_restart: bool = False


def settings(label: str) -> str:
    """Return the name of the digest of an optimizer's settings."""
    return f"{label} settings"


def load(repo: Repository, run: str, attempt: int, rank: int) -> Earlier:
    """Return the records of the attempts before one. Raises CorruptObject for a broken chain."""
    steps: list[Step] = []
    late: dict[str, str] = {}
    for event in _backwards(repo, run, attempt, rank):
        if isinstance(event, Observation):
            late = event.parts | late
        elif len(steps) < _SEARCHED:
            steps.append(event)
        else:
            break
    early: dict[str, str] = {}
    guessed: list[int] = []
    for observation in _begins(repo, run, attempt, rank):
        early = observation.parts | early
        if observation.guessed:
            guessed.append(observation.after or 0)
    kinds = {frozenset(name.removesuffix(settings("")) for name in _labels(step)) for step in steps}
    return Earlier(steps, kinds, late | early, guessed)


def find(earlier: Earlier, first: Step, *, are_certain: bool) -> Place:
    """Return the place of an attempt by its first step, without its number."""
    found = place(earlier.steps, first, are_certain=are_certain)
    # Steps after a guessed place have numbers that prove nothing.
    if earlier.guessed and found.after >= min(earlier.guessed):
        return Place(found.after, _UNCLEAR)
    is_restart = bool(earlier.steps) and found.after == 0 and found.unclear is None
    return msgspec.structs.replace(found, is_restart=is_restart)


def place(steps: Sequence[Step], first: Step, *, are_certain: bool = False) -> Place:
    """Return the place of an attempt by its first step and the earlier steps, the newest first.

    `are_certain`: all attempts have the same labels for the same optimizers.
    """
    label, updates = next(iter(first.updates.items()), ("", 0))
    if not steps:
        return Place(0, _UNCLEAR if updates > 1 else None)
    # An optimizer that has done one update may be new, in the middle of a training.
    if updates > 1 and (are_certain or not _in_turn(steps)) and not _was_reset(steps, label):
        return _by_updates(steps, label, updates)
    return _by_values(steps, first, are_certain=are_certain)


def _in_turn(steps: Sequence[Step]) -> bool:
    """Return True if optimizers took different steps: an attempt may begin with any of them."""
    return any(settings("optimizer") not in step.digests for step in steps)


def _was_reset(steps: Sequence[Step], label: str) -> bool:
    """Return True if an optimizer had the same number of updates after two steps: the script reset its state."""
    counted = {(step.step, step.updates[label]) for step in steps if label in step.updates}
    return len({step for step, _ in counted}) > len({count for _, count in counted})


def _by_updates(steps: Sequence[Step], label: str, updates: int) -> Place:
    """Return the place of the step with this number of updates of an optimizer."""
    numbers = {step.updates[label]: step.step for step in reversed(steps) if label in step.updates}
    if updates in numbers:
        return Place(numbers[updates] - 1)
    # If the update before is in the last step, no step of another optimizer is missing between them.
    is_known = numbers.get(updates - 1) == steps[0].step
    return Place(steps[0].step, None if is_known else _UNCLEAR, is_unchecked=is_known)


def _by_values(steps: Sequence[Step], first: Step, *, are_certain: bool) -> Place:
    """Return the place of the step with the same values.

    An equal batch proves no place: it may be in the next epoch, after the last step that was recorded.
    """
    last = steps[0].step
    equal = {step.step for step in steps if _are_equal(step, first)}
    if len(equal) == 1 and (are_certain or len({name for step in steps for name in _labels(step)}) <= _ALIKE):
        return Place(equal.pop() - 1)
    alike = [step for step in steps if step.batch is not None and step.batch == first.batch]
    likely = next((step for step in alike if _settings(step) == _settings(first)), alike[0] if alike else None)
    if likely is None or _may_repeat(steps, likely.step, last):
        return Place(last, _UNCLEAR)
    return Place(likely.step - 1, _UNCLEAR)


def _may_repeat(steps: Sequence[Step], number: int, last: int) -> bool:
    """Return True if the step after the last one has the batch of a step, where each epoch repeats the one before."""
    batches = {step.step: step.batch for step in steps}
    distance = last + 1 - number
    return all(batches.get(step - distance, batch) == batch for step, batch in batches.items())


def _backwards(repo: Repository, run: str, attempt: int, rank: int) -> Iterator[Step | Observation]:
    """Yield the steps and observations of this rank in earlier attempts, the newest first."""
    for earlier in reversed(range(1, attempt)):
        for batch in ledger.backwards(repo, run, earlier, str(rank)):
            for event in map(ledger.decode_event, reversed(batch.events)):
                if isinstance(event, Step | Observation):
                    yield event


def _begins(repo: Repository, run: str, attempt: int, rank: int) -> Iterator[Observation]:
    """Yield the observations among the first events of earlier attempts of this rank."""
    for earlier in range(1, attempt):
        for event in itertools.islice(ledger.events(repo, run, earlier, str(rank)), _FIRST):
            if isinstance(event, Observation):
                yield event


def _are_equal(one: Step, two: Step) -> bool:
    """Return True if the values of two steps are equal. Settings and learning rates alone prove nothing.

    Not every step has all values: the norm of many gradients is recorded at some steps, and the first step of an
    attempt has the values of its first optimizer.
    """
    unlike = OF_PASSES if one.passes != two.passes else frozenset[str]()
    digests = (one.digests.keys() & two.digests.keys()) - unlike
    quantities = (one.quantities.keys() & two.quantities.keys()) - unlike
    return (
        (bool(unlike) or one.batch == two.batch)
        and bool(_labels(one) & _labels(two))
        and all(one.digests[name] == two.digests[name] for name in digests)
        and all(one.quantities[name] == two.quantities[name] for name in quantities)
        and (
            (one.batch is not None and not unlike) or any(name.startswith(("loss", "grad_norm")) for name in quantities)
        )
    )


def _labels(step: Step) -> set[str]:
    """Return the names of the optimizers' settings in a step."""
    return {name for name in step.digests if name.endswith(settings(""))}


def _settings(step: Step) -> str | None:
    """Return the digest of the settings of a step's first optimizer."""
    return step.digests.get(settings("optimizer"))
