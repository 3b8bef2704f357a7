"""The state of a run: its ledger, folded. It is computed and never stored, so it always matches the ledger.

The newest attempt's launcher determines the standing, and rank 0 the last step.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from m5ws.records.base import Digest
from m5ws.records.failure import EndReason, Failure
from m5ws.records.ledger import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Notice,
    RankEnded,
    RankStarted,
    Step,
)
from m5ws.repository import concurrency
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.repository import Repository

Standing = Literal["created", "refused", "running", "finished", "failed", "interrupted", "unsaved"]
"""`refused`: a replay that would prove nothing. It has a verdict, and no attempt."""


class AttemptState(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `standing` is "running" until the launcher has recorded the end. Times: seconds since the epoch."""

    attempt: int
    standing: Standing = "running"
    started_s: float | None = None
    ended_s: float | None = None
    host: str | None = None
    observed: Digest | None = None
    resume: str | None = None
    world: int | None = None
    last_step: int = 0
    total_steps: int | None = None
    quantities: dict[str, str] = {}
    tokens_per_s: float | None = None
    checkpoints: tuple[CheckpointPublished, ...] = ()
    exit_code: int | None = None
    reason: EndReason | None = None
    notices: tuple[Notice, ...] = ()
    rank_failures: dict[str, Failure] = {}


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

        An attempt that finished without a step had none left to do, so the one before it counts.
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
    summary = summaries.load(repo, run_id, attempt)
    if summary is not None:
        return fold_attempt(attempt, {rank: summaries.events(summary, rank) for rank in summary.chains})
    ranks = ledger.ranks(repo, run_id, attempt)
    chains = concurrency.for_each(lambda rank: summaries.read(repo, run_id, attempt, rank).events, ranks)
    return fold_attempt(attempt, dict(zip(ranks, chains, strict=True)))


def load_newest(repo: Repository, run_id: str) -> RunState:
    """Return a run's standing and last step, for a list of many runs.

    Only the newest attempt's launcher and the end of rank 0's chain are read. Nothing else is in the state.
    """
    newest = max(ledger.attempts(repo, run_id), default=None)
    if newest is None:
        return RunState(run=run_id)
    chains = {ledger.LAUNCHER: ledger.events(repo, run_id, newest, ledger.LAUNCHER), "0": _last(repo, run_id, newest)}
    return RunState(run=run_id, attempts=(fold_attempt(newest, chains),))


def _last(repo: Repository, run_id: str, attempt: int) -> list[AnyEvent]:
    """Return the last events of rank 0, back to its last step at least."""
    events: list[AnyEvent] = []
    for batch in ledger.backwards(repo, run_id, attempt, "0"):
        events = [ledger.decode_event(event) for event in batch.events] + events
        if any(isinstance(event, Step) for event in events):
            break
    return events


def fold_attempt(attempt: int, chains: Mapping[str, Iterable[AnyEvent]]) -> AttemptState:
    """Return the state of one attempt from its events by rank."""
    state = AttemptState(attempt=attempt)
    for rank, events in chains.items():
        for event in events:
            state = fold(state, rank, event)
    return state


def fold(state: AttemptState, rank: str, event: AnyEvent) -> AttemptState:
    """Return `state` after one more event of `rank`."""
    replace = msgspec.structs.replace
    match event:
        case AttemptStarted():
            step = int(event.resume.split("-")[0]) if event.resume else 0
            return replace(
                state,
                started_s=event.time_s,
                host=event.host,
                observed=event.observed,
                resume=event.resume,
                last_step=max(step, state.last_step),
            )
        case AttemptEnded():
            return replace(
                state, standing=event.outcome, ended_s=event.time_s, exit_code=event.exit_code, reason=event.reason
            )
        case RankStarted():
            return replace(state, world=event.world)
        case Step() if rank == "0":
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
        case Notice():
            return replace(state, notices=(*state.notices, event))
        case RankEnded() if event.failure is not None:
            return replace(state, rank_failures=state.rank_failures | {rank: event.failure})
        case _:
            return state
