"""The schedule of checkpoints: every so many steps, every so many minutes, or at the steps of a replay's original."""

import time

from m5ws.training.runtime.context import ActiveRank


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
