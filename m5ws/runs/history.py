"""The history of a run, step by step, over all its attempts: one side of a comparison.

An attempt that resumes from step k replaces the records of earlier attempts after k. The history is that of the
weights that the run ended with.
"""

from typing import TypeVar

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records.base import Digest
from m5ws.records.ledger import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Notice,
    OutputsStored,
    RankStarted,
    Setting,
    State,
    Step,
)
from m5ws.repository import checkpoints, cross_check
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository

T = TypeVar("T")


class History(msgspec.Struct, kw_only=True):
    """Steps and states by rank and step; checkpoint contents by step, and all events by checkpoint; facts by rank, of
    the newest attempt.

    `outputs` is the content with the files that the newest attempt wrote, None if none are kept; `stored` has the
    events of all output files, by their names.
    `begun` is where each attempt began: after which step. `threads` is how many a rank used, from which step on.
    """

    steps: dict[int, dict[int, Step]] = {}
    states: dict[int, dict[int, State]] = {}
    contents: dict[int, str] = {}
    published: dict[str, CheckpointPublished] = {}
    outputs: Digest | None = None
    stored: dict[str, OutputsStored] = {}
    facts: dict[int, dict[str, str | None]] = {}
    notices: list[Notice] = []
    begun: list[tuple[int, int]] = []
    threads: dict[int, list[tuple[int, str]]] = {}
    outcome: str | None = None
    attempts: int = 0
    world: int = 0

    @property
    def last_step(self) -> int:
        """The last step that any rank recorded."""
        return max((step for steps in self.steps.values() for step in steps), default=0)

    @property
    def by_steps(self) -> bool:
        """Whether steps or states were recorded: the script uses a session."""
        return bool(self.steps or self.states)

    def add(self, rank: str, event: AnyEvent) -> None:
        """Take in one event of `rank`, in that rank's order."""
        match event:
            case AttemptStarted():
                self.attempts += 1
                self.outputs = None
                begin = checkpoints.step_of(event.resume) if event.resume else 0
                self._go_back(begin)
                self.begun.append((begin, event.attempt))
            case RankStarted():
                self.world = event.world
                self.facts[event.rank] = event.facts
                if (threads := event.facts.get("threads")) is not None:
                    begin = self.begun[-1][0] if self.begun else 0
                    self.threads.setdefault(event.rank, []).append((begin + 1, threads))
            case Setting(name="threads"):
                self.threads.setdefault(event.rank, []).append((event.step, event.value))
            case Step():
                self.steps.setdefault(int(rank), {})[event.step] = event
            case State() if not event.restored:
                self.states.setdefault(int(rank), {})[event.step] = event
            case CheckpointPublished() | OutputsStored():
                self._publish(event)
            case Notice():
                self.notices.append(event)
            case AttemptEnded():
                self.outcome = event.outcome
            case _:
                pass

    def _publish(self, event: CheckpointPublished | OutputsStored) -> None:
        if isinstance(event, CheckpointPublished):
            self.published[event.name] = event
            if not event.outputs:
                self.contents[event.step] = event.content
                return
        else:
            self.stored[event.name] = event
        self.outputs = event.content

    def attempt_of(self, step: int) -> int | None:
        """Return the attempt whose record of a step counts: the last that began before it."""
        return next((attempt for begin, attempt in reversed(self.begun) if begin < step), None)

    def resumed_before(self, step: int) -> int | None:
        """Return the step after which the attempt of a step was resumed; None for the first attempt's own steps."""
        return next((begin for begin, attempt in reversed(self.begun) if begin < step and attempt > 1), None)

    def threads_at(self, rank: int, step: int) -> str | None:
        """Return the number of threads that a rank used in a step, None if it was not recorded."""
        return next((value for since, value in reversed(self.threads.get(rank, [])) if since <= step), None)

    def is_lost(self, step: int) -> bool:
        """Return True if an attempt resumed from a checkpoint at `step` or later: the run has done this step."""
        return any(begin >= step for begin, attempt in self.begun if attempt > 1)

    def within(self, first: int, last: int) -> "History":
        """Return the history of the steps after `first` up to `last` alone."""

        def kept(by_step: dict[int, T]) -> dict[int, T]:
            return {step: value for step, value in by_step.items() if first < step <= last}

        return msgspec.structs.replace(
            self,
            steps={rank: kept(steps) for rank, steps in self.steps.items()},
            states={rank: kept(states) for rank, states in self.states.items()},
            contents=kept(self.contents),
        )

    def _go_back(self, step: int) -> None:
        """Remove the steps after `step`. The attempt that begins does them again."""
        for steps in self.steps.values():
            for later in [number for number in steps if number > step]:
                del steps[later]
        for states in self.states.values():
            for later in [number for number in states if number > step]:
                del states[later]
        for later in [number for number in self.contents if number > step]:
            del self.contents[later]
        for rank, changes in self.threads.items():
            self.threads[rank] = [change for change in changes if change[0] <= step]
        self.outcome = None


def load(repo: Repository, run: str, before_attempt: int | None = None, folded: bool = True) -> History:
    """Return a run's history, or that of the attempts before one. Raises CorruptObject where a chain is broken.

    Unless it is to be `folded`, the newest record of each step is kept even if a later attempt went back behind it.
    """
    history = History(steps={}, states={}, contents={}, published={}, facts={}, notices=[])
    for attempt in ledger.attempts(repo, run):
        if before_attempt is not None and attempt >= before_attempt:
            break
        _check_ends(repo, run, attempt)
        order = sorted(ledger.ranks(repo, run, attempt), key=lambda rank: rank.isdigit())
        for rank in order:
            for event in ledger.events(repo, run, attempt, rank):
                if folded or not isinstance(event, AttemptStarted):
                    history.add(rank, event)
    return history


def _check_ends(repo: Repository, run: str, attempt: int) -> None:
    """Raise CorruptObject for chains that lack their end, with the evidence of checkpoints."""
    try:
        ledger.check_ends(repo, run, attempt)
    except CorruptObject as error:
        known = cross_check.rewritten(repo, run)
        raise CorruptObject(f"{error}{f': {known}' if known else ''}", hint=error.hint) from error
