"""How far the recorded quantities of two runs are apart, for a verdict by a tolerance."""

import math

import msgspec

from m5ws.records import exact
from m5ws.records.ledger import Step
from m5ws.records.reasons import Gap
from m5ws.records.verdict import LargestDifference


class Distances:
    """Takes in pairs of equal steps. Keeps the largest relative difference, and why a tolerance may not apply."""

    def __init__(self) -> None:
        self.largest = LargestDifference(relative=-1.0, quantity="", step=0, rank=0, values=0)
        """The quantity that is furthest from the original's, relatively, of `values` that were compared."""
        self._unlike_at: tuple[int, int] | None = None
        self.unlike: Gap | None = None
        """The first difference of batches or of quantities' names."""

    def add(self, original: Step, replayed: Step, rank: int) -> None:
        """Add a step of a rank, as both sides recorded it."""
        if original.batch != replayed.batch:
            self._note_unlike(rank, Gap(kind="other batches", step=original.step))
        if original.quantities.keys() != replayed.quantities.keys():
            self._note_unlike(rank, Gap(kind="other quantities", step=original.step))
            return
        largest = self.largest
        values = largest.values + len(original.quantities)
        for name, text in original.quantities.items():
            difference = relative(text, replayed.quantities[name])
            nearer = (rank, original.step) < (largest.rank, largest.step)
            if difference > largest.relative or (difference == largest.relative and nearer):
                largest = LargestDifference(relative=difference, quantity=name, step=original.step, rank=rank, values=0)
        self.largest = msgspec.structs.replace(largest, values=values)

    def _note_unlike(self, rank: int, gap: Gap) -> None:
        place = (rank, gap.step or 0)
        if self._unlike_at is None or place < self._unlike_at:
            self._unlike_at, self.unlike = place, gap


def relative(original: str, replayed: str) -> float:
    """Return the relative difference of two numbers, given as exact text. It is infinite if one is not finite."""
    if original == replayed:
        return 0.0
    try:
        a, b = exact.decode(original), exact.decode(replayed)
    except (ValueError, OverflowError):
        return math.inf
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
