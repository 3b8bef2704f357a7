"""What a run has come to: its ledger, folded. Pure, and never stored, so it can never disagree with the ledger.

The newest attempt's launcher says how a run stands; rank 0 says how far it came.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from m5ws.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Notice,
    RankEnded,
    RankStarted,
    Step,
)
from m5ws.records import Digest
from m5ws.repository import Repository, ledger

Standing = Literal["created", "running", "finished", "failed", "interrupted"]


class AttemptState(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `standing` is "running" until its launcher says how it ended; times are seconds since the epoch."""

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
    message: str | None = None
    notices: tuple[Notice, ...] = ()
    rank_errors: dict[str, str] = {}


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A run so far: its attempts, and the step that the newest of them reached."""

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
        """The last step that is known to be done: a resumed attempt counts from where it resumed."""
        return self.newest.last_step if self.newest else 0

    @property
    def total_steps(self) -> int | None:
        return next((one.total_steps for one in reversed(self.attempts) if one.total_steps), None)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for one in self.attempts for notice in one.notices)


def load(repo: Repository, run_id: str) -> RunState:
    """Return the state of a run, from its whole ledger. Raises CorruptObject where a chain is broken."""
    attempts = []
    for attempt in ledger.attempts(repo, run_id):
        chains = {rank: ledger.events(repo, run_id, attempt, rank) for rank in ledger.ranks(repo, run_id, attempt)}
        attempts.append(fold_attempt(attempt, chains))
    return RunState(run=run_id, attempts=tuple(attempts))


def load_newest(repo: Repository, run_id: str) -> RunState:
    """Return the state of a run from its newest attempt's launcher and rank 0 only, for a list of many runs."""
    newest = max(ledger.attempts(repo, run_id), default=None)
    if newest is None:
        return RunState(run=run_id)
    chains = {rank: ledger.events(repo, run_id, newest, rank) for rank in (ledger.LAUNCHER, "0")}
    return RunState(run=run_id, attempts=(fold_attempt(newest, chains),))


def fold_attempt(attempt: int, chains: Mapping[str, Iterable[AnyEvent]]) -> AttemptState:
    """Return what the events of one attempt, by rank, add up to."""
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
                state, standing=event.outcome, ended_s=event.time_s, exit_code=event.exit_code, message=event.message
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
        case RankEnded() if event.error is not None:
            return replace(state, rank_errors=state.rank_errors | {rank: event.error})
        case _:
            return state
