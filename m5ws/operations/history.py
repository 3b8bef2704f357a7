"""What a run did, step by step, over all its attempts: the side of a comparison.

An attempt that resumes from step k replaces what earlier attempts recorded after k: the history is that of
the weights the run ended with.
"""

from typing import TypeVar

import msgspec

from m5ws.events import AnyEvent, AttemptEnded, AttemptStarted, CheckpointPublished, Notice, RankStarted, State, Step
from m5ws.repository import Repository, checkpoints, ledger

T = TypeVar("T")


class History(msgspec.Struct, kw_only=True):
    """Steps and states by rank and step; checkpoint contents by step; facts by rank, of the newest attempt."""

    steps: dict[int, dict[int, Step]] = {}
    states: dict[int, dict[int, State]] = {}
    contents: dict[int, str] = {}
    facts: dict[int, dict[str, str | None]] = {}
    notices: list[Notice] = []
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
                self._go_back(checkpoints.step_of(event.resume) if event.resume else 0)
            case RankStarted():
                self.world = event.world
                self.facts[event.rank] = event.facts
            case Step():
                self.steps.setdefault(int(rank), {})[event.step] = event
            case State() if not event.restored:
                self.states.setdefault(int(rank), {})[event.step] = event
            case CheckpointPublished():
                self.contents[event.step] = event.content
            case Notice():
                self.notices.append(event)
            case AttemptEnded():
                self.outcome = event.outcome
            case _:
                pass

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
        """Forget what came after `step`: the attempt that begins does it again."""
        for steps in self.steps.values():
            for later in [number for number in steps if number > step]:
                del steps[later]
        for states in self.states.values():
            for later in [number for number in states if number > step]:
                del states[later]
        for later in [number for number in self.contents if number > step]:
            del self.contents[later]
        self.outcome = None


def load(repo: Repository, run: str, before_attempt: int | None = None, folded: bool = True) -> History:
    """Return a run's history, or that of the attempts before one. Raises CorruptObject where a chain is broken.

    Unless it is to be `folded`, the newest record of each step is kept even if a later attempt went back behind it.
    """
    history = History(steps={}, states={}, contents={}, facts={}, notices=[])
    for attempt in ledger.attempts(repo, run):
        if before_attempt is not None and attempt >= before_attempt:
            break
        ledger.check_ends(repo, run, attempt)
        order = sorted(ledger.ranks(repo, run, attempt), key=lambda rank: rank.isdigit())
        for rank in order:
            for event in ledger.events(repo, run, attempt, rank):
                if folded or not isinstance(event, AttemptStarted):
                    history.add(rank, event)
    return history
