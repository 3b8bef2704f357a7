"""The place of an attempt in its run, if the script goes on from its own checkpoint.

m5ws does not know the step of that checkpoint. But the first step that the attempt does has a batch, and an earlier
attempt may have done the same step. Adam and its relatives count their steps in their state.
"""

from collections.abc import Iterator

from m5ws.records.ledger import Step
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

_SEARCHED = 100_000
SETTINGS = "optimizer settings"
_SEVERAL = (
    "several earlier steps had the batch of this attempt's first step, and none had its other values. It has the "
    "number of the newest"
)
_NONE = (
    "no earlier attempt recorded the first step of this one. Its steps are numbered after the last ones, and it is "
    "unknown whether the script's own resume was exact"
)
_LATER = frozenset(("evaluation",))
"""Digests of values that a script may compute after a step, or not."""


def find(
    repo: Repository, run: str, attempt: int, rank: int, first: Step, updates: int | None
) -> tuple[int, str | None]:
    """Return the step after which an attempt goes on, and the reason why that is unclear, if it is.

    `first` is the attempt's first step, without its number. `updates` is the number of steps in the optimizer's state
    before it, if the optimizer counts them. Of earlier steps with the same batch, an equal one counts first, then the
    one after `updates`, then one with the same settings of the optimizer. A killed attempt does not record its last
    step, so an attempt may also go on one step after the last one. Raises CorruptObject for a broken chain.
    """
    steps: list[Step] = []
    for step in _backwards(repo, run, attempt, rank):
        if step.batch == first.batch and _are_equal(step, first):
            return step.step - 1, None
        steps.append(step)
        if len(steps) > _SEARCHED:
            break
    if not steps:
        return 0, None
    last = max(step.step for step in steps)
    if updates:
        turns = _distance([step for step in steps if _rates(step) == _rates(first)]) or 1
        after = updates * turns
        if after <= last + turns:
            # Values of a recorded step that differ are reported when the step is recorded.
            return after, None if after < last else _NONE
    alike = [step for step in steps if step.batch is not None and step.batch == first.batch]
    settings = first.digests.get(SETTINGS)
    likely = [step for step in alike if step.digests.get(SETTINGS) == settings] or alike
    if not likely:
        return last, _NONE
    newest = likely[0].step
    repeats = _distance([step for step in steps if step.batch == steps[0].batch])
    if repeats and steps[0].step < newest + repeats <= steps[0].step + 2:
        return newest + repeats - 1, _NONE  # The batches of the epoch before, after the last step.
    return newest - 1, _SEVERAL if len({step.step for step in likely}) > 1 else None


def _distance(steps: list[Step]) -> int:
    """Return the number of steps from the second newest of some steps to the newest one, 0 if there is none."""
    return next((steps[0].step - step.step for step in steps[1:] if step.step < steps[0].step), 0)


def _rates(step: Step) -> set[str]:
    """Return the names of the learning rates of a step: which optimizers took it."""
    return {name for name in step.quantities if name.startswith("lr")}


def _backwards(repo: Repository, run: str, attempt: int, rank: int) -> Iterator[Step]:
    """Yield the steps of this rank in earlier attempts, the newest first."""
    for earlier in reversed(range(1, attempt)):
        for batch in ledger.backwards(repo, run, earlier, str(rank)):
            for event in map(ledger.decode_event, reversed(batch.events)):
                if isinstance(event, Step):
                    yield event


def _are_equal(one: Step, two: Step) -> bool:
    """Return True if the values of two steps are equal. Of many elements, the gradient norm is not always recorded."""
    digests = [{name: value for name, value in step.digests.items() if name not in _LATER} for step in (one, two)]
    common = one.quantities.keys() & two.quantities.keys()
    return digests[0] == digests[1] and all(one.quantities[name] == two.quantities[name] for name in common)
