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
    "no earlier step had the batch of this attempt's first step. Its steps are numbered after the last one, and it is "
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
    one after `updates`, then one with the same settings of the optimizer. Raises CorruptObject for a broken chain.
    """
    last = 0
    alike: list[Step] = []
    for searched, step in enumerate(_backwards(repo, run, attempt, rank)):
        last = max(last, step.step)
        if searched >= _SEARCHED:
            break
        if step.batch == first.batch and _are_equal(step, first):
            return step.step - 1, None
        if step.batch is not None and step.batch == first.batch:
            alike.append(step)
    if updates is not None and (0 < updates < last or any(step.step == updates + 1 for step in alike)):
        return updates, None  # The values that differ are reported when the step is recorded.
    settings = first.digests.get(SETTINGS)
    likely = [step for step in alike if step.digests.get(SETTINGS) == settings] or alike
    if likely:
        several = len({step.step for step in likely}) > 1
        return likely[0].step - 1, _SEVERAL if several else None
    return last, _NONE


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
