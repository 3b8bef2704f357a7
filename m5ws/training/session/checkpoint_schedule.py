"""The schedule of checkpoints: every so many steps, every so many minutes, or at the steps of a replay's original."""

import time
from pathlib import Path

from m5ws.training.runtime.context import ActiveRank
from m5ws.training.runtime.stop import StopMarker


class Cadence:
    """One rank's view. All ranks decide alike in each step, though only rank 0 reads its clock."""

    def __init__(self, active: ActiveRank, every: int | None) -> None:
        self._every = every
        self._at = frozenset(active.context.checkpoint_at or ())
        by_clock = active.context.checkpoint_at is None
        self._minutes = active.context.spec.checkpoint_minutes if by_clock else None
        self._has_clock = active.rank == 0
        self._world = active.world
        self._folder = Path(active.context.spool_dir)
        self._saves = 0
        self._saved_s = time.monotonic()

    def due(self, step: int) -> bool:
        """Return True if all ranks make a checkpoint after `step`, which this rank has just done."""
        if step in self._at or (self._every is not None and self._every > 0 and step % self._every == 0):
            return True
        if self._minutes is None:
            return False
        # Each checkpoint by time has a mark of its own, numbered by checkpoints: the same on all ranks.
        mark = StopMarker(self._folder / f"save-{self._saves}", self._world)
        if self._has_clock and time.monotonic() - self._saved_s >= 60 * self._minutes:
            mark.name(step)
        return mark.is_reached(step)

    def saved(self) -> None:
        """Restart the clock after a checkpoint of this step."""
        self._saves += 1
        self._saved_s = time.monotonic()
