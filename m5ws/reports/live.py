"""A run while it goes on: its ledger, read as it grows.

Invariant: memory does not grow with the steps, and after the first reading, neither does the work of a reading.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from m5ws.pages.charts import Point
from m5ws.progress import Progress, report
from m5ws.records.ledger import AnyEvent, AttemptStarted, Batch, CheckpointPublished, Notice, Observation, Step
from m5ws.records.verdict import Verdict
from m5ws.reports.curves import Curve
from m5ws.repository import checkpoints, runs
from m5ws.repository.ledger import ledger, losses
from m5ws.repository.ledger.ledger import LAUNCHER
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.repository.repository import Repository
from m5ws.runs import recovery
from m5ws.runs.state import AttemptState, Standing, fold

_NOTICES = 5
_TIMED_STEPS = 32
"""Steps at the end whose times give the speed."""
_RANKS = 8
"""Ranks besides rank 0 that one reading looks at, in turn."""
_VERDICTS = 15
"""Readings between two searches for verdicts, which list the facts of all runs."""
_PIECE_BYTES = 64 * 2**20


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run that goes on. Times are seconds since the epoch, and `last_s` is that of the newest event.

    `loss` are points by step, and `not_finite` is the first step whose loss is no finite number. `quantities` are exact
    texts of the last step of rank 0. `notices` are the newest of `notice_count`.
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
    loss: tuple[Point, ...] = ()
    not_finite: int | None = None
    checkpoints: int = 0
    last_checkpoint: int | None = None
    notices: tuple[Notice, ...] = ()
    notice_count: int = 0
    rank_errors: dict[str, str] = {}
    verdicts: tuple[Verdict, ...] = ()


class LiveRun:
    """Reads the ledger of a run as it grows. `refresh` takes in the new events, `state` returns the result.

    `attempt_dir` returns the directory of an attempt on this machine, whose spools are newer than the store.
    """

    def __init__(self, repo: Repository, run_id: str, attempt_dir: Callable[[int], Path]) -> None:
        self._repo, self._attempt_dir = repo, attempt_dir
        self._run = runs.load(repo, run_id)
        self._readings = 0
        self._attempt: _Attempt | None = None
        self._curve = Curve()
        self._not_finite: int | None = None
        self._checkpoints: set[int] = set()
        self._notices: deque[Notice] = deque(maxlen=_NOTICES)
        self._notice_count = 0
        self._verdicts: tuple[Verdict, ...] = ()

    @property
    def ended(self) -> bool:
        """Return True if the newest attempt has ended."""
        return self._attempt is not None and self._attempt.state.standing != "running"

    def refresh(self, progress: Progress | None = None) -> None:
        """Take in the new events. Raises CorruptObject where a chain is broken."""
        for number in ledger.attempts(self._repo, self._run.id):
            if self._attempt is None or number > self._attempt.state.attempt:
                self._attempt = _Attempt(self._repo, self._run.id, number, self._attempt_dir(number))
            if number == self._attempt.state.attempt:
                report(progress, f"reading attempt {number}")
                for rank, event in self._attempt.new_events():
                    self._take(rank, event)
        if self.ended or self._readings % _VERDICTS == 0:
            self._verdicts = tuple(runs.verdicts(self._repo, self._run.id))
        self._readings += 1

    def state(self) -> LiveState:
        """Return the state after the last `refresh`."""
        run, attempt = self._run, self._attempt
        shown = LiveState(
            run=run.id,
            name=run.name,
            snapshot=run.snapshot,
            reproduces=run.reproduces,
            state="created",
            verdicts=self._verdicts,
            loss=tuple(self._curve.points),
            not_finite=self._not_finite,
            checkpoints=len(self._checkpoints),
            last_checkpoint=max(self._checkpoints, default=None),
            notices=tuple(self._notices),
            notice_count=self._notice_count,
        )
        return shown if attempt is None else attempt.added_to(shown)

    def _take(self, rank: str, event: AnyEvent) -> None:
        match event:
            case AttemptStarted():
                self._cut(checkpoints.step_of(event.resume) if event.resume else 0)
            case Observation() if rank == "0" and (event.after is not None or event.unplaced):
                self._cut(event.after or 0)
            case Step() if rank == "0" and (loss := losses.loss_of(event.quantities)) is not None:
                self._curve.add(event.step, loss)
                if not math.isfinite(loss) and self._not_finite is None:
                    self._not_finite = event.step
            case CheckpointPublished():
                self._checkpoints.add(event.step)
            case Notice() if not any(_same(event, notice) for notice in self._notices):
                # Each rank has the same one.
                self._notices.append(event)
                self._notice_count += 1
            case _:
                pass

    def _cut(self, last: int) -> None:
        """Forget the losses after step `last`: the attempt that begins does these steps again."""
        self._curve.cut(last)
        if self._not_finite is not None and self._not_finite > last:
            self._not_finite = None


def _same(one: Notice, other: Notice) -> bool:
    return (one.kind, one.message, one.step) == (other.kind, other.message, other.step)


class _Attempt:
    """The chains of one attempt, and its state."""

    def __init__(self, repo: Repository, run: str, number: int, directory: Path) -> None:
        self._repo, self._run = repo, run
        self.state = AttemptState(attempt=number)
        self._spools = directory / "spool" if recovery.is_own(repo, run, number, directory) else None
        self._chains: dict[str, _Chain] = {}
        self._turn = 0
        self._times: deque[tuple[int, float]] = deque(maxlen=_TIMED_STEPS)
        self._rates: dict[str, float] = {}
        self._last_s: float | None = None

    def new_events(self) -> Iterator[tuple[str, AnyEvent]]:
        """Yield new events by rank, the launcher's first."""
        for rank in self._due():
            if rank not in self._chains:
                # Only the launcher's chain in the store has the end of an attempt whose supervisor was killed.
                spool = self._spools / f"{rank}.spool" if self._spools is not None and rank != LAUNCHER else None
                self._chains[rank] = _Chain(self._repo, self._run, self.state.attempt, rank, spool)
            for event in self._chains[rank].new_events():
                self._take(rank, event)
                yield rank, event

    def _due(self) -> list[str]:
        """Return the ranks to read: new ones, the launcher, rank 0, and some of the others in turn."""
        ranks = ledger.ranks(self._repo, self._run, self.state.attempt)
        first = [rank for rank in (LAUNCHER, "0") if rank in ranks]
        others = [rank for rank in ranks if rank not in first]
        new = [rank for rank in others if rank not in self._chains]
        known = [rank for rank in others if rank in self._chains]
        begin = self._turn % len(known) if known else 0
        self._turn = begin + _RANKS
        return [*first, *new, *(known[begin:] + known[:begin])[:_RANKS]]

    def _take(self, rank: str, event: AnyEvent) -> None:
        self._last_s = max(event.time_s, self._last_s or 0.0)
        if isinstance(event, Step):
            if event.tokens and event.seconds > 0:
                self._rates[rank] = event.tokens / event.seconds
            if rank == "0":
                self._times.append((event.step, event.time_s))
        if not isinstance(event, Notice | CheckpointPublished):
            self.state = fold(self.state, rank, event)

    def added_to(self, shown: LiveState) -> LiveState:
        """Return the state of a run with that of this attempt."""
        state, speed = self.state, self._steps_per_s()
        left = state.total_steps - state.last_step if state.total_steps else None
        runs_on = state.standing == "running"
        return msgspec.structs.replace(
            shown,
            state=state.standing,
            attempt=state.attempt,
            host=state.host,
            message=state.message,
            started_s=state.started_s,
            ended_s=state.ended_s,
            last_s=self._last_s,
            ranks=state.world,
            step=state.last_step,
            total_steps=state.total_steps,
            quantities=state.quantities,
            steps_per_s=speed,
            tokens_per_s=sum(self._rates.values()) if self._rates else None,
            left_s=left / speed if runs_on and speed and left is not None and left >= 0 else None,
            rank_errors=state.rank_errors,
        )

    def _steps_per_s(self) -> float | None:
        """Return the speed of the last steps; None before there are two with different times."""
        if not self._times:
            return None
        (first, first_s), (last, last_s) = self._times[0], self._times[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None


class _Chain:
    """One chain, read as it grows: from the spool on this machine if there is one, else from the store."""

    def __init__(self, repo: Repository, run: str, attempt: int, rank: str, spool: Path | None) -> None:
        self._repo, self._where = repo, (run, attempt, rank)
        self._spool = SpoolReader(spool) if spool is not None and spool.exists() else None
        self._newest: Batch | None = None

    def new_events(self) -> Iterator[AnyEvent]:
        if self._spool is not None:
            while events := self._spool.read(_PIECE_BYTES):
                yield from map(ledger.decode_event, events)
            return
        read = ledger.read_newer if self._newest is not None else ledger.read
        for batch in read(self._repo, *self._where, after=self._newest):
            # Taken in once, whatever becomes of the caller.
            self._newest = msgspec.structs.replace(batch, events=())
            yield from map(ledger.decode_event, batch.events)
