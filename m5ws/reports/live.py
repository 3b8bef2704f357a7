"""A run while it goes on: its ledger, read as it grows.

Invariant: memory does not grow with the steps, and after the first reading, neither does the work of a reading.
"""

import math
from collections import deque

import msgspec

from m5ws.progress import Progress, report
from m5ws.records.ledger import AnyEvent, CheckpointPublished, Notice, Step
from m5ws.records.verdict import Verdict
from m5ws.repository import runs
from m5ws.repository.ledger import losses
from m5ws.repository.ledger.tail import LedgerTail
from m5ws.repository.repository import Repository
from m5ws.runs.state import AttemptState, Standing, fold

_NOTICES = 5
_TIMED_STEPS = 32
"""Steps at the end whose times give the speed."""


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run that goes on. Times are seconds since the epoch, and `last_s` is that of the newest event.

    `not_finite` is the first step of the newest attempt whose loss is no finite number. `quantities` are exact texts of
    the last step of rank 0. `notices` are the newest of `notice_count`.
    """

    run: str
    name: str | None
    snapshot: str
    reproduces: str | None
    state: Standing
    attempt: int = 0
    host: str | None = None
    message: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    last_s: float | None = None
    ranks: int | None = None
    step: int = 0
    total_steps: int | None = None
    quantities: dict[str, str] = {}
    steps_per_s: float | None = None
    tokens_per_s: float | None = None
    left_s: float | None = None
    not_finite: int | None = None
    checkpoints: int = 0
    last_checkpoint: int | None = None
    notices: tuple[Notice, ...] = ()
    notice_count: int = 0
    rank_errors: dict[str, str] = {}
    verdicts: tuple[Verdict, ...] = ()


class LiveRun:
    """Reads the ledger of a run as it grows. `refresh` takes in the new events, `state` returns the result."""

    def __init__(self, repo: Repository, run_id: str) -> None:
        self._repo, self._run = repo, runs.load(repo, run_id)
        self._tail = LedgerTail(repo, run_id)
        self._checkpoints = set[int]()
        self._notices: dict[tuple[str, str, int | None], Notice] = {}
        self._verdicts = tuple(runs.verdicts(repo, run_id))
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
        if self.ended:
            self._verdicts = tuple(runs.verdicts(self._repo, self._run.id))

    def _take(self, rank: str, event: AnyEvent) -> None:
        self._last_s = max(event.time_s, self._last_s or 0.0)
        match event:
            case CheckpointPublished():
                self._checkpoints.add(event.step)
                return
            case Notice():
                # Each rank has the same one.
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
        run, attempt, speed = self._run, self._attempt, self._steps_per_s()
        left = attempt.total_steps - attempt.last_step if attempt.total_steps else -1
        return LiveState(
            run=run.id,
            name=run.name,
            snapshot=run.snapshot,
            reproduces=run.reproduces,
            state=attempt.standing,
            attempt=attempt.attempt,
            host=attempt.host,
            message=attempt.message,
            started_s=attempt.started_s,
            ended_s=attempt.ended_s,
            last_s=self._last_s,
            ranks=attempt.world,
            step=attempt.last_step,
            total_steps=attempt.total_steps,
            quantities=attempt.quantities,
            steps_per_s=speed,
            tokens_per_s=sum(self._rates.values()) if self._rates else None,
            left_s=left / speed if attempt.standing == "running" and speed and left >= 0 else None,
            not_finite=self._not_finite,
            checkpoints=len(self._checkpoints),
            last_checkpoint=max(self._checkpoints, default=None),
            notices=tuple(self._notices.values())[-_NOTICES:],
            notice_count=len(self._notices),
            rank_errors=attempt.rank_errors,
            verdicts=self._verdicts,
        )

    def _steps_per_s(self) -> float | None:
        """Return the speed of the last steps; None before there are two with different times."""
        if not self._times:
            return None
        (first, first_s), (last, last_s) = self._times[0], self._times[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None
