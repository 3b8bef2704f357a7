"""The phase of this rank, for the supervision of runs that make no progress (supervision/progress.py).

An event is written only when the phase changes, so a step writes none.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from m5ws.records.ledger import Phase
from m5ws.training.runtime.context import ActiveRank


class Phases:
    """The phase of a session's rank. None before the session begins."""

    def __init__(self, active: ActiveRank) -> None:
        self._active = active
        self.name: str | None = None

    def enter(self, name: str, step: int) -> None:
        """Record that this rank is in a phase from now on, after `step`."""
        if name != self.name:
            self.name = name
            self._active.emit(Phase, rank=self._active.rank, step=step, name=name)

    @contextmanager
    def inside(self, name: str, step: int) -> Iterator[None]:
        """Be in a phase, and afterwards in the phase before it."""
        before = self.name or "step"
        self.enter(name, step)
        try:
            yield
        finally:
            self.enter(before, step)
