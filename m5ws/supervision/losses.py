"""Rules for the loss of a run (`[run] loss`): NaN, a jump, a loss that does not move.

The supervisor reads the recorded losses of rank 0. The training does not wait for it.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterator

import msgspec

from m5ws.config.settings import LossSettings
from m5ws.records.ledger import Step
from m5ws.repository.ledger.losses import loss_of

_WINDOW = 100
"""Number of earlier steps whose median a jump is compared with."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose loss breaks a rule. `stops`: the rule ends the attempt."""

    step: int
    text: str
    stops: bool


class Losses:
    """The losses of one attempt, step by step. Each rule is broken once."""

    def __init__(self, settings: LossSettings) -> None:
        self._settings = settings
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._last, self._equal = math.nan, 0
        self._found: set[str] = set()

    def add(self, step: Step) -> list[Finding]:
        """Return the rules that the loss of a step breaks first."""
        if (loss := loss_of(step.quantities)) is None:
            return []
        broken = dict(self._break(loss))
        new = {kind: words for kind, words in broken.items() if kind not in self._found}
        self._found |= new.keys()
        return [
            Finding(step=step.step, text=f"the loss {words} at step {step.step}", stops=kind in self._settings.stop)
            for kind, words in new.items()
        ]

    def _break(self, loss: float) -> Iterator[tuple[str, str]]:
        """Yield each rule that a loss breaks, with the words for it."""
        if not math.isfinite(loss):
            yield "nan", f"is {loss}"
            return
        jump, flat = self._settings.jump, self._settings.flat
        if jump is not None:
            median = statistics.median(self._recent) if len(self._recent) == _WINDOW else math.inf
            if 0 < jump * median < loss:
                yield "jump", f"{loss:g} is more than {jump:g} times the median of {_WINDOW} steps, {median:g},"
            self._recent.append(loss)
        self._equal = self._equal + 1 if loss == self._last else 1
        self._last = loss
        if flat is not None and self._equal >= flat:
            yield "flat", f"has been {loss:g} in {self._equal} steps"
