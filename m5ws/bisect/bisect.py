"""`bisect`: which of the inputs that differ between two runs make them differ, found by running hybrids of both.

A cause is named only on evidence: GOOD, replayed here, is GOOD; GOOD with the cause taken from BAD is not, and without
any one part of the cause it was not seen to differ. Where nothing that is pinned explains it, that is the answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.bisect import ddmin, differences, environments
from m5ws.bisect.differences import Element, Untried
from m5ws.bisect.trials import HybridRuns, Names, Question, Rebuilt, RunsSpent, Shown, Trial, missing, names
from m5ws.diff import commit_history
from m5ws.environment import attempt_environments
from m5ws.errors import UsageError
from m5ws.records import determinism
from m5ws.records.environment import Determinism
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence
from m5ws.repository import runs, snapshots
from m5ws.repository.ledger import ledger
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare
from m5ws.reproduce.outputs import results
from m5ws.runs import history, supervise

Outcome = Literal["explained", "not explained", "unfinished", "not comparable"]
"""`unfinished`: more runs are needed than were allowed.

`not comparable`: GOOD cannot be had again here, or BAD's inputs do not run."""

_FIXED_BY_SETTINGS = ("threads", "threads.interop", "deterministic")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be tried: `alone` one by one, or, where there are many, `groups` before single ones.

    `environment` is what was observed otherwise and cannot be taken from either run. `most_runs` is a bound for one
    cause; whether there is another takes one more, and finding it as many again. `commits` are those between the two.
    """

    good: str
    bad: str
    first: Divergence
    changes: tuple[Change, ...]
    groups: tuple[Names, ...]
    alone: Names
    untried: tuple[Untried, ...]
    environment: tuple[Change, ...]
    most_runs: int
    commits: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Each of `causes` makes GOOD differ by itself; `trials` is the evidence, `runs` what it cost.

    `enough`: with nothing of the causes in it, BAD was seen to be GOOD up to there; None if that could not be told.
    `here` is how this environment differs from GOOD's, where that matters.
    """

    outcome: Outcome
    reason: str
    plan: Plan
    causes: tuple[Names, ...] = ()
    enough: bool | None = None
    trials: tuple[Trial, ...] = ()
    runs: int = 0
    here: tuple[Change, ...] = ()

    @property
    def exit_code(self) -> int:
        return {"explained": 0, "not explained": 1, "unfinished": 2, "not comparable": 2}[self.outcome]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A bisection, ready to be executed; `plan` is what there is to show of it."""

    question: Question
    groups: tuple[tuple[Element, ...], ...]
    plan: Plan


def plan(ports: supervise.Ports, good_id: str, bad_id: str, *, rebuilt: bool = False) -> Task:
    """Return what will be tried, distributions too where environments are to be `rebuilt`.

    Writes and runs nothing. Raises UsageError for runs that do not differ.
    """
    repo = ports.repo
    good, bad = runs.load(repo, good_id), runs.load(repo, bad_id)
    first, session = first_difference(ports, good, bad)
    found, untried = differences.between(repo, good, bad, rebuilt=rebuilt)
    groups = tuple(map(tuple, differences.grouped(found, first)))
    ordered = tuple(element for group in groups for element in group)
    shown = Plan(
        good=good.id,
        bad=bad.id,
        first=first,
        changes=tuple(element.change for element in ordered),
        groups=tuple(map(names, groups)),
        alone=names(ordered) if len(ordered) <= ddmin.FEW else (),
        untried=tuple(untried),
        environment=_environment(repo, good, bad, [element.change for element in found]),
        # GOOD itself comes first.
        most_runs=1 + ddmin.most(groups) if ordered else 0,
        commits=commit_history.between(repo, ports.history, good.snapshot, bad.snapshot),
    )
    question = Question(good=good, bad=bad, elements=ordered, first=first, session=session)
    return Task(question=question, groups=groups, plan=shown)


def first_difference(ports: supervise.Ports, good: Run, bad: Run) -> tuple[Divergence, bool]:
    """Return where `bad` first differs from `good`, and whether they recorded steps. Raises UsageError if nowhere."""
    if (good.parent and good.parent.digest) != (bad.parent and bad.parent.digest):
        raise UsageError(
            f"runs {good.id} and {bad.id} start from different checkpoints, so that no step of theirs is the same",
            hint="`m5ws checkpoint diff` compares the checkpoints. Bisect the runs that made them.",
        )
    for run in (good, bad):
        if run.segment is not None and run.segment.digest is not None:
            raise UsageError(f"run {run.id} is a replay of {run.segment} alone", hint="Name runs that began at step 1.")
        if not ledger.attempts(ports.repo, run.id):
            raise UsageError(f"run {run.id} has not started: there is nothing to compare")
    done = history.load(ports.repo, bad.id)
    comparison = compare.whole(history.load(ports.repo, good.id), done)
    session = comparison.original.by_steps
    first = comparison.first()
    if not session:
        first = results.first_difference(ports.repo, ports.tracker, comparison, good.id, bad.id)
    elif first is None and done.outcome == "finished":
        first = missing(comparison)
    if first is None:
        ended = "" if done.outcome == "finished" else f", and run {bad.id} {done.outcome or 'has not ended'} there"
        raise UsageError(
            f"run {bad.id} does not differ from run {good.id} in anything that both recorded, "
            f"up to step {done.last_step}{ended}",
            hint="`m5ws diff` shows what differs in their inputs. Only a difference in results can be explained.",
        )
    return first, session


def execute(
    ports: supervise.Ports,
    task: Task,
    home: Path,
    author_dir: Path,
    max_runs: int,
    shown: Shown,
    rebuilt: Rebuilt | None = None,
) -> Report:
    """Run hybrids until the causes are known, nothing pinned is left to explain it, or `max_runs` were run.

    `rebuilt` makes their environments, if the task was planned so.
    """
    if not task.question.elements:
        return Report(outcome="not explained", reason=_nothing_pinned(task.plan), plan=task.plan)
    hybrids = HybridRuns(ports, task.question, home, author_dir, max_runs, shown, rebuilt)
    causes: list[frozenset[Element]] = []
    try:
        control = hybrids.trial(frozenset())
        if control.answer != "same":
            return _without_control(task, hybrids, control)
        for cause in ddmin.causes(task.groups, hybrids.ask):
            causes.append(cause)  # noqa: PERF402 - what was found is kept where the next one takes too many runs
    except RunsSpent as spent:
        return _unfinished(task, hybrids, causes, spent)
    return _explained(task, hybrids, causes) if causes else _unexplained(task, hybrids)


def _without_control(task: Task, hybrids: HybridRuns, control: Trial) -> Report:
    """Report that GOOD itself cannot be had again here, so that no hybrid would say anything."""
    good = task.question.good.id
    here = hybrids.drift_since(task.question.good)
    reason = f"run {good} cannot be done again here, and nothing can be compared: it {control.reason}"
    if control.answer == "differs":
        reason = (
            f"run {good}, done again here with nothing changed, is not itself any more: the environment changes bits, "
            f"or an operation is not deterministic; `m5ws reproduce {good}` shows more. Which of the changes matter "
            "cannot be told until it is"
        )
    return _report(task, hybrids, "not comparable", reason, here=here)


def _explained(task: Task, hybrids: HybridRuns, causes: Sequence[frozenset[Element]]) -> Report:
    rest = frozenset(task.question.elements).difference(*causes)
    left = hybrids.trial(rest)
    enough = True if left.answer == "same" else None
    told = " or ".join(_told(task, cause) for cause in causes)
    each = "each by itself makes" if len(causes) > 1 else "makes"
    reason = f"{told} {each} the runs differ"
    good, bad = task.question.good.id, task.question.bad.id
    if enough:
        reason += f"; with all else from run {bad}, it is run {good} up to there"
    else:
        reason += f"; whether anything else does cannot be told: with all else from run {bad} it {left.reason}"
    return _report(task, hybrids, "explained", reason, causes=causes, enough=enough)


def _unexplained(task: Task, hybrids: HybridRuns) -> Report:
    """Report that nothing pinned makes a difference here, or that BAD's inputs do not run here."""
    bad = task.question.bad.id
    everything = hybrids.trial(frozenset(task.question.elements))
    if everything.answer == "unresolved":
        reason = f"the inputs of run {bad} do not run here up to the difference: {everything.reason}"
        return _report(task, hybrids, "not comparable", reason)
    reason = f"with all that could be taken from run {bad}, the run done here is still {task.question.good.id}'s. "
    return _report(task, hybrids, "not explained", reason + _elsewhere(task.plan))


def _unfinished(task: Task, hybrids: HybridRuns, causes: Sequence[frozenset[Element]], spent: RunsSpent) -> Report:
    reason = f"{spent}. {spent.hint}"
    if causes:
        told = " or ".join(_told(task, cause) for cause in causes)
        reason = f"{told} makes the runs differ; whether anything else does was not tried to its end: {reason}"
        return _report(task, hybrids, "explained", reason, causes=causes)
    differing = [trial.taken for trial in hybrids.trials if trial.answer == "differs"]
    if differing:
        smallest = min(differing, key=len)
        reason += f" The smallest set so far that makes them differ: {', '.join(smallest)}"
    return _report(task, hybrids, "unfinished", reason)


def _report(
    task: Task,
    hybrids: HybridRuns,
    outcome: Outcome,
    reason: str,
    *,
    causes: Sequence[frozenset[Element]] = (),
    enough: bool | None = None,
    here: tuple[Change, ...] = (),
) -> Report:
    return Report(
        outcome=outcome,
        reason=reason,
        plan=task.plan,
        causes=tuple(_taken(task, cause) for cause in causes),
        enough=enough,
        trials=hybrids.trials,
        runs=hybrids.runs,
        here=here,
    )


def _taken(task: Task, chosen: frozenset[Element]) -> Names:
    return names([element for element in task.question.elements if element in chosen])


def _told(task: Task, cause: frozenset[Element]) -> str:
    together = " together" if len(cause) > 1 else ""
    return f"{' and '.join(_taken(task, cause))}{together}"


def _nothing_pinned(shown: Plan) -> str:
    return f"nothing that is pinned and could be tried differs between the runs. {_elsewhere(shown)}"


def _elsewhere(shown: Plan) -> str:
    """Say where else the cause can lie."""
    if any(change.rating != "cannot" for change in shown.environment):
        return "Their environments differ so that it can change bits: see there"
    return "Nor do their environments, in what was recorded: an operation is not deterministic, or a machine failed"


def _environment(repo: Repository, good: Run, bad: Run, tried: Sequence[Change]) -> tuple[Change, ...]:
    """Return how the observed environments differ, but for what follows from what is pinned, or is tried."""
    old, new = (snapshots.load(repo, run.snapshot).determinism for run in (good, bad))
    one, other = _variables(old, good), _variables(new, bad)
    follows = {f"variable.{name}" for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    follows |= set(_FIXED_BY_SETTINGS) if old != new or follows else set()
    follows |= {"world"} if good.spec.nproc != bad.spec.nproc else set()
    installed = [change for change in tried if change.part == "environment"]
    return tuple(
        change
        for change in attempt_environments.between_first(repo, good.id, bad.id)
        if change.name not in follows and not environments.follows(change, installed)
    )


def _variables(settings: Determinism, run: Run) -> dict[str, str]:
    return determinism.environment(settings) | run.spec.environment
