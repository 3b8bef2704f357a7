"""The ledger's steps as MLflow points: one a step, with the quantities of rank 0, in order.

A quantity that rank 0 lacks is read from the lowest rank that has it. So lists of runs and MLflow have one number.

The fold is pure: the same ledger gives the same points in the same order, whenever and in any portions it is read. So
the progress of a delivery is one pair: attempt and step of the last point.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec

from m5ws.records import exact
from m5ws.records.ledger import AnyEvent, AttemptEnded, AttemptStarted, RankStarted, Step
from m5ws.tracking.mlflow.params import metric_name

PREFIX = "m5ws/"
"""Prefix of all metrics that m5ws delivers. It separates them from the script's own metrics."""
TOKENS_PER_S = f"{PREFIX}tokens_per_s"
STEP_S = f"{PREFIX}step_s"

Skipping = Callable[[str], AbstractContextManager[object]]
"""Enters a part of the work by its name."""
Position = tuple[int, int]
"""(attempt, step): the place of a point in the order of delivery."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one attempt. `time_ms`: its lowest rank finished the step then. `values`: by metric name."""

    attempt: int
    step: int
    time_ms: int
    values: dict[str, float]

    @property
    def position(self) -> Position:
        return self.attempt, self.step


class Points:
    """Joins the records of the ranks. A step becomes a point when all ranks have recorded it.

    After an attempt, ranks without records no longer count. A step that a kill interrupted is no point, because its
    tokens would be of fewer ranks than its neighbours'. The ledger still has it. A resumed attempt repeats steps. A
    repeated step with equal bits is the same point and is not given again; a step with other bits is.
    """

    def __init__(self) -> None:
        self._pending: dict[int, dict[int, dict[int, Step]]] = {}
        self._world: dict[int, int] = {}
        self._recording: dict[int, set[int]] = {}
        self._over: set[int] = set()
        self._given: dict[int, int] = {}

    def add(self, attempt: int, rank: str, event: AnyEvent) -> None:
        """Take one event of a chain. Events of one chain come in order; chains come in any order."""
        match event:
            case AttemptStarted():
                self._over.update(range(1, attempt))
            case RankStarted():
                self._world[attempt] = event.world
            case Step():
                self._recording.setdefault(attempt, set()).add(int(rank))
                self._pending.setdefault(attempt, {}).setdefault(event.step, {})[int(rank)] = event
            case AttemptEnded():
                self._over.add(attempt)

    def take(self, skipping: Skipping = nullcontext) -> Iterator[Point]:
        """Yield the points that are complete. Call it after all available events are added.

        `skipping` is entered for each step by its name. If it swallows an error, the step is no point.
        """
        for attempt in sorted(self._pending):
            steps = self._pending[attempt]
            over = attempt in self._over
            world = self._recording.get(attempt, set()) if over else set(range(self._world.get(attempt, 0)))
            for step in sorted(steps):
                if steps[step].keys() != world:
                    if over:
                        continue
                    return
                by_rank = steps.pop(step)
                with skipping(f"step {step}"):
                    point, bits = _point(attempt, step, by_rank)
                    if self._given.get(step) != bits:
                        self._given[step] = bits
                        yield point
            if over:
                del self._pending[attempt]


def _point(attempt: int, step: int, by_rank: Mapping[int, Step]) -> tuple[Point, int]:
    ranks = [by_rank[rank] for rank in sorted(by_rank)]
    texts = dict[str, str]()
    for record in reversed(ranks):
        texts |= record.quantities
    values = {metric_name(f"{PREFIX}{name}"): exact.decode(text) for name, text in texts.items()}
    seconds = max(record.seconds for record in ranks)
    if seconds > 0:
        values[STEP_S] = seconds
        if tokens := sum(record.tokens for record in ranks):
            values[TOKENS_PER_S] = tokens / seconds
    point = Point(attempt=attempt, step=step, time_ms=int(ranks[0].time_s * 1000), values=values)
    # 8 bytes are kept for each step. After a collision of 64 bits, a repeated step would not be sent again.
    return point, hash(tuple(sorted(texts.items())))
