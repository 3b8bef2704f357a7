"""The agreement of all ranks on a stop or a checkpoint after the same step, when only some ranks have a reason.

A signal may reach one rank alone, and only rank 0 reads the clock of checkpoints. A rank that ends by itself leaves the
other ranks in a collective. So the ranks tell each other their reasons, about once a second of steps. A single process
decides after each step.
"""

import time

from m5ws.training.runtime import collectives
from m5ws.training.runtime.collectives import Group

_INTERVAL_S = 1.0


class Agreement:
    """One rank's view. The number of steps until the next agreement is rank 0's, by its clock."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._step = self._next = 0
        self._interval = 1
        self._agreed_s = time.monotonic()

    def on(self, step: int, *reasons: bool) -> list[bool]:
        """Return each reason as it holds for all ranks: True if any rank has it. Between agreements, all are False.

        Call it after each step on all ranks. It is collective in the steps of agreements.
        """
        if self._group is None:
            return [*reasons]
        if step < self._next:
            return [False for _ in reasons]
        # Steps that suddenly take longer delay no agreement by much: the interval only doubles.
        longest = 2 * self._interval if collectives.rank(self._group) == 0 else 0
        *agreed, self._interval = collectives.greatest((*reasons, min(longest, self._steps(step))), self._group)
        self._step, self._next, self._agreed_s = step, step + self._interval, time.monotonic()
        return [bool(value) for value in agreed]

    def _steps(self, step: int) -> int:
        """Return the number of steps in an interval, at least one, by the time since the last agreement."""
        seconds = (time.monotonic() - self._agreed_s) / max(1, step - self._step)
        return max(1, int(_INTERVAL_S / max(seconds, 1e-9)))
