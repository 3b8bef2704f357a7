"""Trials of hybrids: whether a run with some of the differences equals GOOD up to the decisive step.

A run of this bisection, of an earlier bisection or of `reproduce` is reused from the store, if its environment gives
the same bits as this environment.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import leader, planning
from m5ws.bisect import environments, hybrids
from m5ws.bisect.ddmin import Answer
from m5ws.bisect.differences import InputDifference
from m5ws.environment import drift
from m5ws.errors import M5Error, UsageError
from m5ws.launch.interface import LaunchFailed
from m5ws.progress import Progress
from m5ws.records.base import Digest
from m5ws.records.environment import Observed
from m5ws.records.failure import EndReason
from m5ws.records.reasons import Ended
from m5ws.records.recipe import Recipe
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Divergence
from m5ws.repository.publishing import repeated
from m5ws.repository.references import runs
from m5ws.reproduce import compare, reproduce
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import results
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.runs import history
from m5ws.runs.history import History
from m5ws.runs.step_lists import absent_in
from m5ws.snapshot.config.merge import MergeConflict
from m5ws.wording.comparisons import describe_ended

Names = tuple[str, ...]
Rebuilt = Callable[[Recipe], Ports]
"""Makes an environment, and returns the ports of a run in it. Raises M5Error if a package cannot be installed."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One tested set of differences: the differences taken from BAD, and the answer.

    `known`: `run` existed before. `first` is its divergence from GOOD, `reason` the cause of an unresolved answer.
    """

    taken: Names
    answer: Answer
    run: str | None = None
    known: bool = False
    first: Divergence | None = None
    reason: str | None = None


class TrialSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, the differences that can be taken from BAD, and the first divergence."""

    good: Run
    bad: Run
    elements: tuple[InputDifference, ...]
    first: Divergence
    session: bool
    rules: OutputRules = OutputRules()

    @property
    def last(self) -> int:
        """The step after which the answer of a hybrid is known."""
        return max(self.first.step, 1)


class TrialListeners(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks for progress: before a run begins, for each of its events, and after each trial."""

    begin: Callable[[Names, str], None]
    on_trial: Callable[[Trial], None]
    watch: Watch
    prepare: Progress


class BudgetExhausted(M5Error):
    """The limit of hybrid runs is reached."""

    hint = "Repeat the command with a larger --max-runs. Finished runs are reused."


class _Known(Exception):
    """An earlier run has the answer, so the new run does not begin."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.run)
        self.trial = trial


class HybridRuns:
    """Answers for sets of differences, each cached. At most `limit` of them take a new run.

    With `rebuilt`, each hybrid runs in an environment made for it.
    """

    def __init__(
        self,
        ports: Ports,
        setup: TrialSetup,
        home: Path,
        author_dir: Path,
        limit: int,
        listeners: TrialListeners,
        rebuilt: Rebuilt | None = None,
    ) -> None:
        self._ports = ports
        self._rebuilt = rebuilt
        self._made: dict[Recipe, Ports] = {}
        self._setup = setup
        self._home = home
        self._author_dir = author_dir
        self._limit = limit
        self._listeners = listeners
        self._original = history.load(ports.repo, setup.good.id)
        self._answers: dict[frozenset[InputDifference], Trial] = {}
        self.runs = 0

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, in order."""
        return tuple(self._answers.values())

    def trial(self, chosen: frozenset[InputDifference]) -> Trial:
        """Return the trial of GOOD with `chosen` from BAD. Raises BudgetExhausted, reproduce.ReplayInterrupted."""
        if chosen not in self._answers:
            self._answers[chosen] = trial = self._tried(chosen)
            self._listeners.on_trial(trial)
        return self._answers[chosen]

    def _tried(self, chosen: frozenset[InputDifference]) -> Trial:
        setup = self._setup
        taken = tuple(element.name for element in setup.elements if element in chosen)
        try:
            ports, plan = self._plan(chosen, ", ".join(taken) if len(taken) < 4 else f"{len(taken)} differences")
        except (MergeConflict, UsageError) as error:
            return Trial(taken=taken, answer="unresolved", reason=f"cannot be made: {error}")
        try:
            return self._run(ports, plan, taken)
        except _Known as known:
            return known.trial
        except LaunchFailed as error:
            return Trial(taken=taken, answer="unresolved", reason=f"cannot be started: {error}")

    def _plan(self, chosen: Collection[InputDifference], what: str) -> tuple[Ports, AttemptPlan]:
        """Publish a hybrid's snapshot. Return the ports of its run, and the plan of its first attempt."""
        repo, setup = self._ports.repo, self._setup

        def attempt() -> tuple[hybrids.Hybrid, str]:
            hybrid = hybrids.make(repo, setup.good, setup.bad, setup.elements, chosen)
            return hybrid, hybrids.publish(repo, hybrid, setup.good, setup.bad, what)

        hybrid, snapshot = repeated(attempt)
        replay = planning.new_run(
            snapshot, hybrid.spec, name=setup.good.name, reproduces=setup.good.id, parent=hybrid.parent
        )
        if setup.session:
            begin = hybrid.parent.step if hybrid.parent is not None else 0
            replay = msgspec.structs.replace(replay, segment=Segment(first=begin, last=max(setup.last, begin + 1)))
        at = tuple(sorted(step for step in self._original.contents if not setup.session or step <= setup.last))
        ports = self._outside(chosen, snapshot)
        environment, tracker = ports.environment, ports.tracker
        where = (self._home, self._author_dir, environment, tracker)
        planned = planning.plan(repo, replay, *where, checkpoint_at=at, python=ports.python)
        return ports, planning.repeat_fingerprints(planned, self._original.states.get(0, {}))

    def _outside(self, chosen: Collection[InputDifference], snapshot: Digest) -> Ports:
        """Return the ports of a hybrid, with a rebuilt environment if the bisection has them. Raises MergeConflict."""
        if self._rebuilt is None:
            return self._ports
        taken = [element.change for element in chosen if element.change.part == "environment"]
        good, bad = self._setup.good, self._setup.bad
        try:
            recipe = environments.recipe(self._ports.repo, good, bad, taken, snapshot)
            if recipe not in self._made:
                self._made[recipe] = self._rebuilt(recipe)
        except M5Error as error:
            raise MergeConflict(f"its environment cannot be made: {error}") from error
        return self._made[recipe]

    def _run(self, ports: Ports, plan: AttemptPlan, taken: Names) -> Trial:
        comparison = Comparison(self._side(self._original), (ports.repo, plan.run.id))

        def accept(observed: Observed, _: object) -> None:
            if (known := self._known(plan, taken, observed)) is not None:
                raise _Known(known)
            if self.runs >= self._limit:
                raise BudgetExhausted(f"the limit of --max-runs is reached: {self.runs} hybrids were run")
            self.runs += 1
            self._listeners.begin(taken, plan.run.id)

        watch, prepare = self._listeners.watch, self._listeners.prepare
        result = leader.execute(ports, plan, watch, prepare, accept=accept, judge=comparison.feed)
        trial = self._judged(comparison, plan.run, taken, result.outcome, result.reason)
        if result.outcome == "interrupted" and trial.answer == "unresolved":
            raise reproduce.ReplayInterrupted(
                f"hybrid {plan.run.id} was stopped before its answer was known",
                hint="Repeat the command. Finished runs are reused.",
            )
        return trial

    def _known(self, plan: AttemptPlan, taken: Names, observed: Observed) -> Trial | None:
        """Return the trial of an earlier run that is as good as a new run in the observed environment."""
        repo = self._ports.repo
        for earlier in runs.readable(repo, runs.replays(repo, plan.run.reproduces or "")):
            if not _as(earlier, plan.run):
                continue
            done = history.load(repo, earlier.id)
            if done.outcome is None or done.attempt != 1:
                continue
            if drift.worst(reproduce.environment_drift(repo, earlier.id, observed)) in ("can", "does"):
                continue
            comparison = compare.compare_histories(self._side(self._original), self._side(done))
            trial = self._judged(comparison, earlier, taken, done.outcome, done.reason)
            if trial.answer != "unresolved" or done.outcome == "failed":
                return msgspec.structs.replace(trial, known=True)
        return None

    def _side(self, done: History) -> History:
        """Return the compared part of a run: with a session, everything up to the decisive step."""
        return done.within(-1, self._setup.last) if self._setup.session else done

    def _judged(
        self, comparison: Comparison, replay: Run, taken: Names, outcome: str | None, reason: EndReason | None
    ) -> Trial:
        first = comparison.first()
        if not self._setup.session:
            repo, tracker, good = self._ports.repo, self._ports.tracker, self._setup.good.id
            first = results.first_difference(repo, tracker, comparison, good, replay.id, self._setup.rules)
        if first is None and outcome == "finished":
            first = missing(comparison)
        why = None if first is not None else _unresolved(self._setup, comparison, outcome, reason)
        answer: Answer = "differs" if first is not None else "same" if why is None else "unresolved"
        return Trial(taken=taken, answer=answer, run=replay.id, first=first, reason=why)


def missing(comparison: Comparison) -> Divergence | None:
    """Return the first step of the original that an ended run lacks, as a divergence."""
    lacking = [
        (next(iter(absent)), rank)
        for rank, steps in comparison.original.steps.items()
        if (absent := absent_in(comparison.replay.steps.get(rank, {}), steps))
    ]
    if not lacking:
        return None
    step, rank = min(lacking)
    return Divergence(step=step, rank=rank, kind="steps", quantity="step", original="done", replayed=None)


def _unresolved(setup: TrialSetup, comparison: Comparison, outcome: str | None, reason: EndReason | None) -> str | None:
    """Return the reason why an ended hybrid without a divergence is not the same either; None if it is the same."""
    first, replay = setup.first, comparison.replay
    if outcome != "finished" and (not setup.session or missing(comparison) is not None):
        return describe_ended(Ended(side="replay", outcome=outcome or "unknown", reason=reason))
    if first.kind in ("tensor", "generator") and first.step not in replay.states.get(first.rank, {}):
        return f"recorded no state after step {first.step}"
    if first.kind == "checkpoint" and first.step not in replay.contents:
        return f"saved no checkpoint after step {first.step}"
    return None


def _as(earlier: Run, wanted: Run) -> bool:
    """Return True if an existing run does the wanted steps from the same inputs and the same begin."""
    if (earlier.reproduces, earlier.snapshot, earlier.spec, earlier.parent) != (
        wanted.reproduces,
        wanted.snapshot,
        wanted.spec,
        wanted.parent,
    ):
        return False
    existing, needed = earlier.segment, wanted.segment
    return existing is None or (needed is not None and existing.digest is None and existing.last >= needed.last)


def names(elements: Sequence[InputDifference]) -> Names:
    """Return the names of elements."""
    return tuple(element.name for element in elements)
