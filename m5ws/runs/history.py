"""The history of a run over all its attempts: one side of a comparison.

An attempt that resumes from step k replaces the records of earlier attempts after k: the history leads to the weights
at the end of the run. Steps and states stay in the ledger until they are compared.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import TypeGuard, cast

import msgspec

from m5ws.errors import CorruptObject
from m5ws.records.failure import EndReason
from m5ws.records.ledger import (
    COMPLETE,
    NODE,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    DataOrder,
    Notice,
    Observation,
    OtherLoader,
    OutputsStored,
    RankStarted,
    ScriptEnded,
    Setting,
    State,
    Step,
)
from m5ws.repository import cross_check
from m5ws.repository.ledger import ledger, summaries
from m5ws.repository.ledger.chains import Order, first_missing
from m5ws.repository.ledger.spool import RankHeads
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.runs import recorded_steps
from m5ws.runs.recorded_steps import JoinedSeries, LiveSeries, R, RecordedChain, SeriesRange

_OTHER_LOADER = b"other-loader"
"""Text in each stored event of the type `OtherLoader`."""


class History(msgspec.Struct, kw_only=True):
    """Steps and states by rank and step; checkpoint contents by step, and all events by checkpoint.

    `outputs` has the events of the files that the newest attempt wrote, in the order of nodes; `stored` has the
    events of all output files, by their names.
    `observed`: the script uses no session, and its steps were observed.
    `begun` has the step after which each placed attempt began, and its number. The attempts in `unplaced` do not show
    after which step they continued, so their steps and states are not in the history. `unobserved_after` is the last
    step before an error ended the observation. `weights` has the fingerprints of each rank's weights that were alive
    when the script ended, `unread` the descriptions of weights that are in no record. `threads` has each rank's number
    of threads, from a step on.
    """

    steps: dict[int, Mapping[int, Step]] = {}
    states: dict[int, Mapping[int, State]] = {}
    contents: dict[int, str] = {}
    published: dict[str, CheckpointPublished] = {}
    outputs: tuple[OutputsStored, ...] = ()
    stored: dict[str, OutputsStored] = {}
    notices: list[Notice] = []
    begun: list[tuple[int, int]] = []
    unplaced: list[int] = []
    unobserved_after: int | None = None
    weights: dict[int, dict[str, str]] = {}
    unread: set[str] = set()
    threads: dict[int, list[tuple[int, str]]] = {}
    orders: dict[int, DataOrder] = {}
    """The order of the samples of each attempt that recorded one."""
    unrecorded: set[str] = set()
    """The datasets that a rank read by another loader than its session's."""
    outcome: str | None = None
    reason: EndReason | None = None
    logged: bool = True
    """False if no process of the script began a run in MLflow."""
    world: int = 0
    observed: bool = False
    source: tuple[Repository, str] | None = None
    """Store and run of a live history, from which steps are read that are not held any more."""
    _loaded: "History | None" = None
    attempt: int = 0
    """The newest attempt."""
    folded: bool = True
    """False keeps the newest record of each step, even if a later attempt went back behind it."""

    @property
    def last_step(self) -> int:
        """The last step that any rank recorded."""
        return max(map(recorded_steps.last, self.steps.values()), default=0)

    @property
    def without_place(self) -> tuple[int, ...]:
        """The attempts that do not show after which step they continued: the last of them may have done no step."""
        is_placed = any(attempt == self.attempt for _, attempt in self.begun)
        ended = self.observed and self.outcome in COMPLETE and self.attempt > 1 and not is_placed
        return tuple(dict.fromkeys((*self.unplaced, *((self.attempt,) if ended else ()))))

    @property
    def by_steps(self) -> bool:
        """Whether steps or states were recorded or observed."""
        return bool(self.steps or self.states)

    @property
    def by_session(self) -> bool:
        """Whether the script uses a session, which records the state that decides."""
        return self.by_steps and not self.observed

    def add(self, rank: str, event: AnyEvent) -> None:  # noqa: C901, PLR0912  one case for each kind of event
        """Take in one event of `rank`, in that rank's order."""
        is_counted: bool = self.counts(event)
        match event:
            case AttemptStarted() | Observation():
                self._start(event)
            case RankStarted():
                self.world = event.world
                if (threads := event.facts.get("threads")) is not None:
                    begin = self.begun[-1][0] if self.begun else 0
                    self.threads.setdefault(event.rank, []).append((begin + 1, threads))
            case Setting(name="threads"):
                self.threads.setdefault(event.rank, []).append((event.step, event.value))
            case Step() if is_counted:
                self._add(self.steps, int(rank), event, Step)
            case State() if is_counted:
                self._add(self.states, int(rank), event, State)
            case CheckpointPublished():
                self.published[event.name] = event
                self.contents[event.step] = event.content
            case OutputsStored():
                self.stored[event.name] = event
                self.outputs = (*self.outputs, event)
            case Notice():
                self.notices.append(event)
            case ScriptEnded():
                self.weights[event.rank] = event.weights
                self.unread.update(event.unread)
            case DataOrder():
                # A second session of the script replaces the steps of the first.
                self.unrecorded.update(["."] if self.attempt in self.orders else [])
                self.orders[self.attempt] = event
            case OtherLoader():
                self.unrecorded.update(event.datasets)
            case AttemptEnded():
                self.logged = event.logged or self.attempt > 1  # an earlier attempt may have logged
                self.outcome, self.reason = event.outcome, event.reason

    def counts(self, event: AnyEvent) -> TypeGuard[Step | State]:
        """Return True for a step or state that is not of an unplaced attempt, and not read back from a checkpoint."""
        return recorded_steps.counts(event) and self.attempt not in self.unplaced

    def _add(self, values: dict[int, Mapping[int, R]], rank: int, value: R, kind: type[R]) -> None:
        series = values.setdefault(rank, LiveSeries(kind, partial(self._older, kind, rank)))
        assert isinstance(series, LiveSeries)
        series.add(value)

    def _older(self, kind: type[R], rank: int) -> Mapping[int, R]:
        """Return all values of a rank of a live run, from its ledger."""
        if self.source is not None and self._loaded is None:
            self._loaded = load(*self.source)
        loaded = self._loaded or History()
        values: dict[type, Mapping[int, Mapping[int, Step | State]]] = {Step: loaded.steps, State: loaded.states}
        return cast("Mapping[int, R]", values[kind].get(rank, {}))

    def attempt_of(self, step: int) -> int | None:
        """Return the attempt whose record of a step counts: the last that began before it."""
        return next((attempt for begin, attempt in reversed(self.begun) if begin < step), None)

    def resumed_before(self, step: int) -> int | None:
        """Return the step after which the attempt of a step was resumed; None for the first attempt's own steps."""
        return next((begin for begin, attempt in reversed(self.begun) if begin < step and attempt > 1), None)

    def threads_at(self, rank: int, step: int) -> str | None:
        """Return the number of threads of a rank in a step, or None if it was not recorded."""
        return next((value for since, value in reversed(self.threads.get(rank, [])) if since <= step), None)

    def is_lost(self, step: int) -> bool:
        """Return True if an attempt resumed from a checkpoint at `step` or later: the run has done this step."""
        return any(begin >= step for begin, attempt in self.begun if attempt > 1)

    def within(self, first: int, last: int) -> "History":
        """Return the history of the steps after `first` up to `last` alone."""
        return msgspec.structs.replace(
            self,
            steps={rank: SeriesRange(steps, first, last) for rank, steps in self.steps.items()},
            states={rank: SeriesRange(states, first, last) for rank, states in self.states.items()},
            contents={step: content for step, content in self.contents.items() if first < step <= last},
            weights=self.weights if last >= self.last_step else {},
        )

    def _start(self, event: AttemptStarted | Observation) -> None:
        if isinstance(event, AttemptStarted):
            self.outputs, self.outcome, self.reason = (), None, None
            self.attempt = event.attempt
            self.weights.clear()
            self.unread.clear()
            if not self.observed:
                self._begin(checkpoints.step_of(event.resume) if event.resume else 0)
        elif event.after is not None or event.unplaced:
            self.observed = True
            self._place(event.after)
        elif event.failed_after is not None:
            steps = (event.failed_after, *(() if self.unobserved_after is None else (self.unobserved_after,)))
            self.unobserved_after = min(steps)

    def _place(self, after: int | None) -> None:
        """Take in the place of this attempt, which each rank records; ranks with different places prove none."""
        placed = [step for step, attempt in self.begun if attempt == self.attempt]
        if self.attempt in self.unplaced or placed == [after]:
            return
        if after is not None and not placed:
            self._begin(after)
            return
        self.unplaced.append(self.attempt)
        for step in placed:
            self.begun.remove((step, self.attempt))
            self._cut(min(step, step if after is None else after))

    def _begin(self, step: int) -> None:
        """Forget all records after `step`: the attempt that begins does these steps again."""
        self.begun.append((step, self.attempt))
        if step == 0:
            self.unplaced.clear()
        self._cut(step)

    def _cut(self, step: int) -> None:
        if not self.folded:
            return
        if self.unobserved_after is not None and step <= self.unobserved_after:
            self.unobserved_after = None
        for series in (*self.steps.values(), *self.states.values()):
            assert isinstance(series, LiveSeries | JoinedSeries)
            series.cut(step)
        for later in [number for number in self.contents if number > step]:
            del self.contents[later]
        for rank, changes in self.threads.items():
            self.threads[rank] = [change for change in changes if change[0] <= step]


def load(
    repo: Repository,
    run: str,
    before_attempt: int | None = None,
    folded: bool = True,
    ranks: Collection[str] | None = None,
) -> History:
    """Return the history of a run, or of attempts before `before_attempt`. Raises CorruptObject if a chain is broken.

    `folded` becomes the history's.
    `ranks`: the ranks whose events are read besides the events of nodes, and other loaders; None for all.
    Each chain is read and checked once here; steps and states are read again when they are needed.
    """
    history = History(folded=folded)
    begun = ledger.attempts(repo, run)
    if (absent := first_missing(begun)) is not None:
        raise CorruptObject(f"the ledger of run {run} lacks attempt {absent}")
    for attempt in begun:
        if before_attempt is not None and attempt >= before_attempt:
            break
        try:
            _read(repo, run, attempt, history, ranks)
        except CorruptObject as error:
            known = cross_check.find_rewritten(repo, run)
            raise CorruptObject(f"{error}{f': {known}' if known else ''}", hint=error.hint) from error
    return history


def _read(repo: Repository, run: str, attempt: int, history: History, ranks: Collection[str] | None) -> None:
    """Add an attempt to a history, and check the ends of its ranks."""
    ended: AttemptEnded | None = None
    is_begun = False
    heads = RankHeads(run, attempt)
    origins = None if ranks is None else {*ranks, NODE}
    for node in ledger.nodes(repo, run, attempt):
        chain = RecordedChain(repo, run, attempt, node, origins)
        order = Order(attempt, node, f"runs/{run}/ledger/{attempt:04d}/{node}")
        for batch in ledger.read(repo, run, attempt, node):
            chain.note(batch)
            for origin, raw in ledger.stored_events(batch):
                is_chosen = origins is None or origin in origins
                if not is_chosen and _OTHER_LOADER not in bytes(raw):
                    continue
                event = ledger.decode_event(raw)
                order.take(origin, event)
                if is_chosen:
                    heads.add(origin, bytes(raw))
                elif not isinstance(event, OtherLoader):
                    continue
                if origin != NODE and history.counts(event):
                    _note(history, chain, origin, batch.seq, event)
                elif not isinstance(event, Step | State):
                    history.add(origin, event)
                if isinstance(event, AttemptEnded):
                    ended = ended or event
        is_begun = is_begun or order.is_begun
    if not is_begun:
        raise CorruptObject(f"attempt {attempt} of run {run} lacks the event that begins it")
    if ended is None:
        summaries.check_unended(repo, run, attempt)
    else:
        ledger.check_heads(run, attempt, ended, heads.by_rank, ranks)


def _note(history: History, chain: RecordedChain, rank: str, seq: int, event: Step | State) -> None:
    """Note where in its chain a step or state is."""
    every = history.steps if isinstance(event, Step) else history.states
    by_rank = cast("dict[int, Mapping[int, Step | State]]", every)
    series = by_rank.setdefault(int(rank), JoinedSeries[Step | State]())
    assert isinstance(series, JoinedSeries)
    series.note(chain, rank, seq, event)
