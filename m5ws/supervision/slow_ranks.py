"""The ranks that are slower than the other ranks of their node, by samples of all stacks. Pure: no I/O.

Ranks that wait for each other in each step take equally long for it. The slow rank waits less in collectives, and
spends that time in its data or its computation. Ranks that do not wait for each other differ in their number of steps.

Invariant: a difference counts only if it is large, and five standard deviations above chance. Unknown is an answer.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal

Phase = Literal["data", "compute", "collective"]
"""The part of a step in which a rank is."""
_PLACES: dict[Phase, str] = {"data": "its data", "compute": "its computation", "collective": "collectives"}
_LEAST, _MOST = 60, 360
"""Samples of each rank that are compared: of 20 minutes to 2 hours, with one in 20 seconds."""
_INTERVAL = 30
"""Samples between two comparisons: each comparison may err."""
_MARGIN = 0.15
"""Part of the time that a rank must lose. Ranks with small extra work, such as logs, are not reported."""
_FEWER = 0.2
"""Part of the steps that a slow rank must lag behind."""
_DEVIATIONS = 5.0


class SlowRanks:
    """The newest samples of the ranks of a node, and the slow ranks that were returned."""

    def __init__(self, host: str) -> None:
        self._host, self._number = host, 0
        self._samples: deque[tuple[Mapping[int, Phase], Mapping[int, int]]] = deque(maxlen=_MOST)
        self._reported: set[tuple[int, Phase | None]] = set()

    def add(self, phases: Mapping[int, Phase], steps: Mapping[int, int]) -> list[str]:
        """Take one sample of each rank, and its completed steps. Return a sentence for each new slow rank and phase.

        Two samples must be of different steps: samples of one step depend on each other.
        """
        if self._samples and self._samples[-1][0].keys() != phases.keys():
            self._samples.clear()
        self._samples.append((phases, steps))
        self._number += 1
        if self._number % _INTERVAL or len(self._samples) < _LEAST or len(phases) < 2:
            return []
        new = {key: text for key, text in self._find() if key not in self._reported}
        self._reported.update(new)
        return list(new.values())

    def _find(self) -> Iterator[tuple[tuple[int, Phase | None], str]]:
        number, (_, first), (_, last) = len(self._samples), self._samples[0], self._samples[-1]
        intervals = [(before, after) for (_, before), (_, after) in itertools.pairwise(self._samples)]
        for rank in last:
            done, others_done = _compare({each: last[each] - first[each] for each in last}, rank)
            pairs = (_compare({each: after[each] - before[each] for each in last}, rank) for before, after in intervals)
            lags = [others - own for own, others in pairs]
            chance = _DEVIATIONS * statistics.stdev(lags) * math.sqrt(len(lags))
            has_fewer = sum(lags) >= max(_FEWER * others_done, chance, 1)
            shares = {phase: _compare({each: self._share(each, phase) for each in last}, rank) for phase in _PLACES}
            longer: list[Phase] = [phase for phase in shares if _is_longer(*shares[phase], number)]
            if not has_fewer:
                # A rank whose data is faster computes a larger part of its time, and is not slow.
                own, others = shares["collective"]
                waits_less = _is_longer(others, own, number)
                longer = [each for each in longer if each == "data" or (each == "compute" and waits_less)]
            phase = max(longer, key=lambda each: shares[each][0] - shares[each][1], default=None)
            if phase is not None or has_fewer:
                fewer = f"it completed {done:,.0f} steps, and other ranks {others_done:,.0f}" if has_fewer else ""
                share = f"it spends {shares[phase][0]:.0%} of its time in {_PLACES[phase]}" if phase else ""
                share += f", and other ranks {shares[phase][1]:.0%} ({number} samples)" if phase else ""
                head = f"rank {rank} on {self._host} is slower than the other ranks of the node: "
                yield (rank, phase), head + "; ".join(filter(None, (fewer, share)))

    def _share(self, rank: int, phase: Phase) -> float:
        return sum(phases[rank] == phase for phases, _ in self._samples) / len(self._samples)


def _compare(values: Mapping[int, float], rank: int) -> tuple[float, float]:
    """Return the value of a rank, and the median of the other ranks."""
    return values[rank], statistics.median(value for other, value in values.items() if other != rank)


def _is_longer(own: float, others: float, number: int) -> bool:
    """Return True if a part of `number` samples is larger than another, by the margin and beyond chance."""
    mean = ((own + others) * number + 1) / (2 * number + 2)
    return own - others >= max(_MARGIN, _DEVIATIONS * math.sqrt(2 * mean * (1 - mean) / number))
