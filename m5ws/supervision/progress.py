"""Progress of the ranks of a node, and ranks that make none. No I/O; the clock is handed in.

Steps, states, checkpoints and changes of the phase are progress of their rank. The limit of a phase is five times its
longest duration in this attempt, between the floor and the ceiling of the settings. Before such a duration is known,
it is the ceiling. The limit of a step is the ceiling too, until the script has named a phase or if it has no session:
an evaluation without a name looks like a long step. A floor in the settings states that there is none.

Invariant: time in which the watcher itself stood still does not count, so neither a sleeping machine nor a stopped
supervisor makes a rank late. The wall clock is never read.
"""

from typing import Literal

import msgspec

from m5ws.config.settings import StuckSettings
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Phase, RankEnded, RankStarted, State, Step

_WARM_UP_STEPS = 5
"""Steps of an attempt that say nothing about later steps: they compile, and fill caches."""
_FACTOR = 5
_GAP_S = 5.0
"""A longer time between two looks is the watcher's own."""
EXIT = "exit"
"""The phase of a rank whose script has ended, and whose process ends."""
_FREE = ("start", "end", EXIT)
"""Phases without steps, in which use of a processor and output are progress."""
_OWN = (*_FREE, "load", "save", "step")
"""Phases that no script names."""
_FLOOR_S = 300.0
"""The floor by default: half of the time after which NCCL ends ranks that wait."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that made no progress for `waited_s` in a phase. `step` is its last completed step.

    `limit_s` is the longest limit of the ranks of the node whose script runs.
    """

    step: int
    phase: str
    waited_s: float
    limit_s: float

    @property
    def is_late(self) -> bool:
        """True if the limit is passed."""
        return self.waited_s > self.limit_s


class _Rank(msgspec.Struct, kw_only=True):
    """The phase of a rank, the time of its begin or of the step's begin, and the time of the last progress."""

    since_s: float
    last_s: float
    phase: str = "start"
    step: int = 0
    steps: int = 0
    has_session: bool = False

    @property
    def name(self) -> str:
        return "first step" if self.phase == "step" and not self.steps else self.phase


class Progress:
    """The progress of all ranks of a node that have started."""

    def __init__(self, settings: StuckSettings) -> None:
        self._floor_s = min(_FLOOR_S, settings.ceiling_s) if settings.floor_s is None else settings.floor_s
        self._ceiling_s = settings.ceiling_s
        self._are_named = settings.floor_s is not None
        self._ranks: dict[str, _Rank] = {}
        self._longest_s: dict[str, float] = {}
        self._looked_s: float | None = None
        self._lost_s = 0.0

    def take(self, rank: str, event: AnyEvent, now_s: float) -> None:
        """Take an event of a rank that was written before `now_s`."""
        at_s = self._counted(now_s)
        if isinstance(event, RankStarted):
            self._ranks[rank] = _Rank(since_s=at_s, last_s=at_s)
        elif (state := self._ranks.get(rank)) is None:
            return
        elif isinstance(event, RankEnded):
            state.phase, state.last_s = EXIT, at_s
        elif isinstance(event, Phase):
            if state.phase != "step":
                self._learn(state.phase, at_s - state.since_s)
            self._are_named = self._are_named or event.name not in _OWN
            state.phase, state.step, state.has_session = event.name, event.step, True
            state.since_s = state.last_s = at_s
        elif isinstance(event, Step):
            self._complete(state, event.step, at_s)
        elif isinstance(event, State | CheckpointPublished):
            state.last_s = at_s

    def note_activity(self, rank: str, kind: Literal["processor", "output"], now_s: float) -> None:
        """Take the use of a processor, or output, as progress where no steps are expected.

        Between observed steps, output alone is progress: ranks that wait for each other may use a processor.
        """
        state, at_s = self._ranks.get(rank), self._counted(now_s)
        if state is not None and (state.phase in _FREE or (kind == "output" and not state.has_session)):
            state.last_s = at_s

    def look(self, now_s: float) -> dict[str, Waiting]:
        """Return all ranks. Called at intervals: a longer interval does not count."""
        at_s = self._counted(now_s)
        # Ranks wait for each other: all may take as long as the rank with the longest limit.
        running = (state for state in self._ranks.values() if state.phase != EXIT)
        limit_s = max(map(self._limit_s, running), default=self._ceiling_s)
        limits_s = {rank: self._ceiling_s if state.phase == EXIT else limit_s for rank, state in self._ranks.items()}
        return {
            rank: Waiting(step=state.step, phase=state.name, waited_s=at_s - state.last_s, limit_s=limits_s[rank])
            for rank, state in self._ranks.items()
        }

    def _counted(self, now_s: float) -> float:
        """Return a time without the times in which nobody looked."""
        if self._looked_s is not None and (gap_s := now_s - self._looked_s) > _GAP_S:
            self._lost_s += gap_s
        self._looked_s = now_s
        return now_s - self._lost_s

    def _complete(self, state: _Rank, step: int, at_s: float) -> None:
        state.steps, state.step = state.steps + 1, step
        if not state.has_session:
            state.phase = "step"
        if state.phase == "step" and state.steps > _WARM_UP_STEPS:
            self._learn("step", at_s - state.since_s)
        state.since_s = state.last_s = at_s

    def _learn(self, phase: str, duration_s: float) -> None:
        self._longest_s[phase] = max(duration_s, self._longest_s.get(phase, 0.0))

    def _limit_s(self, state: _Rank) -> float:
        longest_s = self._longest_s.get(state.phase)
        is_warm = state.phase != "step" or (self._are_named and state.steps > _WARM_UP_STEPS)
        if longest_s is None or not is_warm or not state.has_session:
            return self._ceiling_s
        return min(max(_FACTOR * longest_s, self._floor_s), self._ceiling_s)
