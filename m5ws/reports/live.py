"""A run while it goes on: its ledger, read as it grows.

Invariant: memory does not grow with the steps, and after the first reading, neither does the work of a reading.
"""

import math
from collections import deque

import msgspec

from m5ws.progress import Progress, report
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Notice, Step
from m5ws.repository.ledger import losses
from m5ws.repository.ledger.tail import LedgerTail
from m5ws.repository.references import runs
from m5ws.repository.repository import Repository
from m5ws.runs.state import AttemptState, fold

_NOTICES = 5
_TIMED_STEPS = 32
"""Steps at the end whose times give the speed."""


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run that goes on. `newest` is its newest attempt, number 0 before the first attempt.

    `last_s` is the time of the newest event in seconds since the epoch. `not_finite` is the first step of the newest
    attempt whose loss is no finite number. `notices` are the newest of `notice_count`.
    """

    run: str
    name: str | None
    newest: AttemptState
    last_s: float | None = None
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    left_s: float | None = None
    not_finite: int | None = None
    checkpoints: int = 0
    last_checkpoint: int | None = None
    notices: tuple[Notice, ...] = ()
    notice_count: int = 0


class LiveRun:
    """Reads the ledger of a run as it grows. `refresh` takes in the new events, `state` returns the result."""

    def __init__(self, repo: Repository, run_id: str) -> None:
        self._run = runs.load(repo, run_id)
        self._tail = LedgerTail(repo, run_id)
        self._checkpoints = set[int]()
        self._notices: dict[tuple[str, str, int | None], Notice] = {}
        self._begin(AttemptState(attempt=0, standing="created"))

    def _begin(self, attempt: AttemptState) -> None:
        self._attempt = attempt
        self._times = deque[tuple[int, float]](maxlen=_TIMED_STEPS)
        self._rates: dict[str, float] = {}
        self._last_s: float | None = None
        self._not_finite: int | None = None

    @property
    def ended(self) -> bool:
        """Return True if the newest attempt has ended."""
        return self._attempt.standing not in ("created", "running")

    def refresh(self, progress: Progress | None = None) -> None:
        """Take in the new events. Raises CorruptObject where a chain is broken."""
        report(progress, "reading the ledger")
        for number, rank, event in self._tail.poll():
            if number > self._attempt.attempt:
                self._begin(AttemptState(attempt=number))
            if number == self._attempt.attempt:
                self._take(rank, event)

    def _take(self, rank: str, event: AnyEvent) -> None:
        self._last_s = max(event.time_s, self._last_s or 0.0)
        match event:
            case CheckpointPublished():
                self._checkpoints.add(event.step)
                return
            case Notice():
                # Each rank has the same notice.
                self._notices.setdefault((event.kind, event.message, event.step), event)
                return
            case Step() if event.tokens and event.seconds > 0:
                self._rates[rank] = event.tokens / event.seconds
        if isinstance(event, Step) and rank == "0":
            self._times.append((event.step, event.time_s))
            loss = losses.loss_of(event.quantities)
            if loss is not None and not math.isfinite(loss) and self._not_finite is None:
                self._not_finite = event.step
        self._attempt = fold(self._attempt, rank, event)

    def state(self) -> LiveState:
        """Return the state after the last `refresh`."""
        attempt, speed = self._attempt, self._steps_per_s()
        left = attempt.total_steps - attempt.last_step if attempt.total_steps else -1
        return LiveState(
            run=self._run.id,
            name=self._run.name,
            newest=attempt,
            last_s=self._last_s,
            steps_per_s=speed,
            tokens_per_s=sum(self._rates.values()) if self._rates else None,
            left_s=left / speed if attempt.standing == "running" and speed and left >= 0 else None,
            not_finite=self._not_finite,
            checkpoints=len(self._checkpoints),
            last_checkpoint=max(self._checkpoints, default=None),
            notices=tuple(self._notices.values())[-_NOTICES:],
            notice_count=len(self._notices),
        )

    def _steps_per_s(self) -> float | None:
        """Return the speed of the last steps; None before there are two with different times."""
        if not self._times:
            return None
        (first, first_s), (last, last_s) = self._times[0], self._times[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None
