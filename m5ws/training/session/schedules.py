"""The schedules of checkpoints and fingerprints: every so many steps, or at the steps of a replay's original.

Checkpoints can also be made every so many minutes, and fingerprints as their cost allows. By cost, an attempt
fingerprints its third step, and then each multiple of a power of ten. The power is the smallest for which fingerprints
take at most `SHARE` of the time of steps, and it grows with the number of steps. So the ledger of a month has some
thousand fingerprints, and two runs of different speed have common steps to compare.
"""

import statistics
import time
from collections import deque
from collections.abc import Collection

from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group
from m5ws.training.runtime.context import ActiveRank

SHARE = 0.005
"""The part of a training's time that fingerprints may take."""
_WITH_EACH_POWER = 1000
"""Steps with an interval of 1; the next nine times as many have one of at least 10, and so on."""
_LONGEST = 10**6
_THIRD = 2
_RECENT_STEPS = 99
_RECENT_FINGERPRINTS = 5


class Cadence:
    """One rank's view. Only rank 0 reads its clock, and the ranks agree on a step (agreement.py)."""

    def __init__(self, active: ActiveRank, every: int | None) -> None:
        self._every = every
        self._at = frozenset(active.context.checkpoint_at or ())
        by_clock = active.context.checkpoint_at is None and active.rank == 0
        self._minutes = active.context.spec.checkpoint_minutes if by_clock else None
        self._saved_s = time.monotonic()

    @property
    def is_time(self) -> bool:
        """True if this rank's clock asks for a checkpoint."""
        return self._minutes is not None and time.monotonic() - self._saved_s >= 60 * self._minutes

    def is_due(self, step: int) -> bool:
        """Return True if all ranks make a checkpoint after `step` by its number."""
        return step in self._at or (self._every is not None and self._every > 0 and step % self._every == 0)

    def saved(self) -> None:
        """Restart the clock after a checkpoint."""
        self._saved_s = time.monotonic()


class FingerprintSchedule:
    """One rank's view. All ranks decide alike, though only rank 0 measures times.

    `every` is the number of steps that the run or the script sets: 0 for none, None to decide by cost. `at` has the
    steps of a replay's original.
    """

    def __init__(self, every: int | None, at: Collection[int] | None, group: Group) -> None:
        self._every = every
        self._at = frozenset(at or ())
        self._by_cost = every is None and at is None
        self._group = group
        self._next = 0
        self._interval = 1
        self._steps_s: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._fingerprints_s: deque[float] = deque(maxlen=_RECENT_FINGERPRINTS)

    def begin(self, first: int) -> None:
        """Begin with the attempt's step `first`."""
        self._next = first + _THIRD

    def done(self, seconds: float) -> None:
        """Note the time of a step."""
        self._steps_s.append(seconds)

    def is_due(self, step: int) -> bool:
        """Return True if all ranks fingerprint the state after `step`."""
        if self._by_cost:
            return step >= self._next
        return step in self._at or (self._every is not None and self._every > 0 and step % self._every == 0)

    def fingerprinted(self, step: int, seconds: float) -> None:
        """Choose the next step by the seconds that this fingerprint took; collective."""
        if self._by_cost:
            self._fingerprints_s.append(seconds)
            step_s, fingerprint_s = statistics.median(self._steps_s), statistics.median(self._fingerprints_s)
            self._interval = collectives.broadcast(interval(step, step_s, fingerprint_s), self._group)
            self.checkpointed(step)

    def checkpointed(self, step: int) -> None:
        """Choose the next step after a step whose state is fingerprinted for its checkpoint."""
        if step >= self._next:
            self._next = (step // self._interval + 1) * self._interval


def interval(step: int, step_s: float, fingerprint_s: float) -> int:
    """Return the number of steps between fingerprints after `step`, a power of ten, for these durations in seconds."""
    least = max(step / _WITH_EACH_POWER, fingerprint_s / (SHARE * step_s) if step_s > 0 else _LONGEST)
    power = 1
    while power < least and power < _LONGEST:
        power *= 10
    return power
