"""The state of a run: its ledger, folded. It is computed and never stored, so it always matches the ledger.

The last event of the newest attempt determines the standing, and rank 0 the last step.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from m5ws.records.base import Digest
from m5ws.records.failure import EndReason, Failure
from m5ws.records.ledger import (
    NODE,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Moved,
    NodeStarted,
    Notice,
    OutputsStored,
    RankEnded,
    RankStarted,
    Reads,
    Step,
)
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.repository import Repository

Standing = Literal["created", "refused", "running", "finished", "failed", "interrupted", "unsaved"]
"""`refused`: a replay that would prove nothing. It has a verdict, and no attempt."""


class AttemptState(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `standing` is "running" until the ledger has the end. Times: seconds since the epoch.

    The end of an attempt whose supervisor was killed is unknown: `ended_s` is None, and `last_s` is of the last event.
    """

    attempt: int
    standing: Standing = "running"
    started_s: float | None = None
    ended_s: float | None = None
    last_s: float | None = None
    host: str | None = None
    job_name: str | None = None
    observed: Digest | None = None
    resume: str | None = None
    world: int | None = None
    last_step: int = 0
    total_steps: int | None = None
    quantities: dict[str, str] = {}
    tokens_per_s: float | None = None
    checkpoints: tuple[CheckpointPublished, ...] = ()
    outputs: tuple[OutputsStored, ...] = ()
    exit_code: int | None = None
    reason: EndReason | None = None
    notices: tuple[Notice, ...] = ()
    rank_failures: dict[str, Failure] = {}
    reads: tuple[Reads, ...] = ()
    moved: tuple[Moved, ...] = ()


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run: its attempts, oldest first."""

    run: str
    attempts: tuple[AttemptState, ...] = ()

    @property
    def newest(self) -> AttemptState | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def standing(self) -> Standing:
        return self.newest.standing if self.newest else "created"

    @property
    def last_step(self) -> int:
        """The last step known to be done. A resumed attempt counts from its resume.

        An attempt that finished without a step had none left to do, so the attempt before counts.
        """
        done = [attempt.last_step for attempt in self.attempts]
        return done[-1] if done and self.standing != "finished" else next(filter(None, reversed(done)), 0)

    @property
    def total_steps(self) -> int | None:
        return next((attempt.total_steps for attempt in reversed(self.attempts) if attempt.total_steps), None)

    @property
    def published(self) -> dict[str, CheckpointPublished]:
        """The recorded checkpoints by name."""
        return {event.name: event for attempt in self.attempts for event in attempt.checkpoints}

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for attempt in self.attempts for notice in attempt.notices)


def load(repo: Repository, run_id: str) -> RunState:
    """Return the state of a run, from the summaries of its attempts, or their ledgers where they have none.

    Raises CorruptObject where a chain that is read is broken.
    """
    attempts = [attempt_of(repo, run_id, number) for number in ledger.attempts(repo, run_id)]
    return RunState(run=run_id, attempts=tuple(attempts))


def attempt_of(repo: Repository, run_id: str, attempt: int) -> AttemptState:
    """Return the state of one attempt; as `load`."""
    events = summaries.load(repo, run_id, attempt)
    return fold_attempt(attempt, ((origin, event) for origin, each in events.items() for event in each))


def load_newest(repo: Repository, run_id: str) -> RunState:
    """Return a run's standing and last step, for a list of many runs.

    Only the beginning and the end of the newest attempt are read. Nothing else is in the state.
    """
    newest = max(ledger.attempts(repo, run_id), default=None)
    if newest is None:
        return RunState(run=run_id)
    started = ledger.started(repo, run_id, newest)
    begin = [(NODE, started)] if started is not None else []
    return RunState(run=run_id, attempts=(fold_attempt(newest, [*begin, *_last(repo, run_id, newest)]),))


def _last(repo: Repository, run_id: str, attempt: int) -> list[tuple[str, AnyEvent]]:
    """Return the last events of an attempt, back to the last step of rank 0 at least."""
    events: list[tuple[str, AnyEvent]] = []
    for batch in ledger.backwards(repo, run_id, attempt):
        events = [*ledger.decode(batch, ("0", NODE)), *events]
        if any(isinstance(event, Step) for _, event in events):
            break
    return events


def fold_attempt(attempt: int, events: Iterable[tuple[str, AnyEvent]]) -> AttemptState:
    """Return the state of one attempt from its events with their origins."""
    state = AttemptState(attempt=attempt)
    for origin, event in events:
        state = fold(state, origin, event)
    return state


def fold(state: AttemptState, origin: str, event: AnyEvent) -> AttemptState:
    """Return `state` after one more event."""
    replace = msgspec.structs.replace
    match event:
        case AttemptStarted():
            step = int(event.resume.split("-")[0]) if event.resume else 0
            return replace(
                state,
                started_s=event.time_s,
                host=event.host,
                job_name=event.job_name,
                resume=event.resume,
                last_step=max(step, state.last_step),
            )
        case NodeStarted():
            return replace(state, observed=event.observed)
        case AttemptEnded():
            is_known = event.reason is None or event.reason.kind != "supervisor killed"
            times = {"ended_s" if is_known else "last_s": event.time_s}
            return replace(state, standing=event.outcome, exit_code=event.exit_code, reason=event.reason, **times)
        case RankStarted():
            return replace(state, world=event.world)
        case Step() if origin == "0":
            speed = event.tokens / event.seconds if event.seconds > 0 and event.tokens else None
            return replace(
                state,
                last_step=max(event.step, state.last_step),
                total_steps=event.total,
                quantities=event.quantities,
                tokens_per_s=speed,
            )
        case CheckpointPublished():
            return replace(state, checkpoints=(*state.checkpoints, event))
        case OutputsStored():
            return replace(state, outputs=(*state.outputs, event))
        case Notice():
            return replace(state, notices=(*state.notices, event))
        case Reads():
            return replace(state, reads=(*state.reads, event))
        case Moved():
            return replace(state, moved=add_moved(state.moved, event))
        case RankEnded() if event.failure is not None:
            return replace(state, rank_failures=state.rank_failures | {origin: event.failure})
        case _:
            return state


def add_moved(sums: tuple[Moved, ...], new: Moved) -> tuple[Moved, ...]:
    """Return sums of moved bytes with another event, one sum for each pair of regions."""
    same = next((each for each in sums if (each.region, each.here) == (new.region, new.here)), None)
    whole = msgspec.structs.replace(
        new,
        read_bytes=new.read_bytes + (same.read_bytes if same is not None else 0),
        written_bytes=new.written_bytes + (same.written_bytes if same is not None else 0),
    )
    return (*(each for each in sums if each is not same), whole)
