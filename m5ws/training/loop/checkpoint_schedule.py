"""When checkpoints fall: every so many steps, every so many minutes, or where a replay's original had them."""

import time
from pathlib import Path

from m5ws.training.runtime.context import Active
from m5ws.training.runtime.stop import Mark


class Cadence:
    """One rank's view; all ranks come to the same answer in the same step, though only rank 0 looks at its clock."""

    def __init__(self, active: Active, every: int | None) -> None:
        self._every = every
        self._at = frozenset(active.context.checkpoint_at or ())
        by_clock = active.context.checkpoint_at is None
        self._minutes = active.context.spec.checkpoint_minutes if by_clock else None
        self._looks = active.rank == 0
        self._world = active.world
        self._folder = Path(active.context.spool_dir)
        self._saves = 0
        self._saved_s = time.monotonic()

    def due(self, step: int) -> bool:
        """Return whether all ranks make a checkpoint after `step`, which this rank has just done."""
        if step in self._at or (self._every is not None and self._every > 0 and step % self._every == 0):
            return True
        if self._minutes is None:
            return False
        # Each checkpoint that a clock asks for has a mark of its own, counted by checkpoints: equal on all ranks.
        mark = Mark(self._folder / f"save-{self._saves}", self._world)
        if self._looks and time.monotonic() - self._saved_s >= 60 * self._minutes:
            mark.name(step)
        return mark.reached(step)

    def saved(self) -> None:
        """Count time anew: a checkpoint was made after this step."""
        self._saves += 1
        self._saved_s = time.monotonic()
