"""Last and lowest loss of a chain, so that lists of runs need no steps.

The loss of a step is its quantity `loss`, else the first by name that ends with `loss`.
"""

import math
from collections.abc import Mapping

import msgspec

from m5ws.records import exact
from m5ws.records.ledger import Step


class LossRange(msgspec.Struct, frozen=True, kw_only=True):
    """Last and lowest loss of an attempt, on rank 0; None without a loss. A NaN is never the lowest."""

    last: float | None = None
    lowest: float | None = None
    lowest_step: int | None = None


class LossTracker:
    """Takes in steps in order, and has the range of their losses."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._lowest: tuple[float, int] | None = None

    def add(self, step: Step) -> None:
        """Take in one step."""
        loss = loss_of(step.quantities)
        if loss is None:
            return
        self._last = loss
        if not math.isnan(loss) and (self._lowest is None or loss < self._lowest[0]):
            self._lowest = loss, step.step

    @property
    def range(self) -> LossRange:
        lowest, step = self._lowest or (None, None)
        return LossRange(last=self._last, lowest=lowest, lowest_step=step)


def loss_of(quantities: Mapping[str, str]) -> float | None:
    """Return the loss among the exact texts of a step's quantities; None if there is none, or it is no number."""
    text = quantities.get("loss")
    if text is None:
        text = next((quantities[name] for name in sorted(quantities) if name.endswith("loss")), None)
    return number(text)


def number(text: str | None) -> float | None:
    """Return the number of an exact text, or None."""
    if text is None:
        return None
    try:
        return exact.decode(text)
    except (ValueError, OverflowError):
        return None
