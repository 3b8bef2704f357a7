"""`bisect`: find the changed inputs that make two runs differ, by running hybrids of both runs.

A cause is named only on evidence. GOOD, replayed here, equals its record. GOOD with the cause from BAD differs. GOOD
without any one part of the cause was not seen to differ. If no pinned input explains the difference, the report says
so.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.agent.ports import Ports
from m5ws.bisect import ddmin, differences, environments
from m5ws.bisect.differences import ExcludedDifference, InputDifference
from m5ws.bisect.trials import (
    BudgetExhausted,
    HybridRuns,
    Names,
    Rebuilt,
    Trial,
    TrialListeners,
    TrialSetup,
    missing,
    names,
)
from m5ws.diff import commit_history
from m5ws.diff.arguments import changed_values
from m5ws.environment import attempt_environments
from m5ws.errors import UsageError
from m5ws.records import determinism
from m5ws.records.environment import Determinism
from m5ws.records.run import Run
from m5ws.records.verdict import Change, Divergence
from m5ws.repository.ledger import ledger
from m5ws.repository.references import runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare
from m5ws.reproduce.outputs import results as output_results
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.runs import history

Outcome = Literal["explained", "not explained", "unfinished", "not comparable"]
"""`unfinished`: --max-runs was too low.

`not comparable`: GOOD cannot be replayed here, or BAD's inputs do not run."""

_FIXED_BY_SETTINGS = ("threads", "threads.interop", "deterministic")


class BisectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The differences to test: `alone` one by one, or, if there are many, halves of all `names`, and smaller parts.

    `environment` has observed differences that cannot be taken from either run. `most_runs` is a bound for one cause. A
    test for another cause takes one more run, and its search as many again. `commits` lie between the two runs.
    """

    good: str
    bad: str
    first: Divergence
    changes: tuple[Change, ...]
    names: Names
    alone: Names
    untried: tuple[ExcludedDifference, ...]
    environment: tuple[Change, ...]
    most_runs: int
    commits: tuple[str, ...] = ()


class BisectReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Each of `causes` makes GOOD differ by itself; `trials` is the evidence, `runs` the number of runs.

    `enough` is True if BAD without the causes equals GOOD up to that step, and None if that is unknown. `here` is the
    drift of this environment from GOOD's, if it matters.
    """

    outcome: Outcome
    reason: str
    plan: BisectPlan
    causes: tuple[Names, ...] = ()
    enough: bool | None = None
    trials: tuple[Trial, ...] = ()
    runs: int = 0
    here: tuple[Change, ...] = ()

    @property
    def exit_code(self) -> int:
        return {"explained": 0, "not explained": 1, "unfinished": 2, "not comparable": 2}[self.outcome]


class BisectTask(msgspec.Struct, frozen=True, kw_only=True):
    """A bisection that is ready to be executed. `plan` is its printable record."""

    setup: TrialSetup
    plan: BisectPlan


def plan(
    ports: Ports, good_id: str, bad_id: str, *, rebuilt: bool = False, results: tuple[str, ...] = ()
) -> BisectTask:
    """Return the plan. With `rebuilt` environments, distributions are differences too. `results`: `[run] results`.

    Writes and runs nothing. Raises UsageError for runs that do not differ.
    """
    repo = ports.repo
    good, bad = runs.load(repo, good_id), runs.load(repo, bad_id)
    rules = output_results.rules(results)
    first, session = first_difference(ports, good, bad, rules)
    elements, untried = differences.list_differences(repo, good, bad, rebuilt=rebuilt)
    shown = BisectPlan(
        good=good.id,
        bad=bad.id,
        first=first,
        changes=tuple(element.change for element in elements),
        names=names(elements),
        alone=names(elements) if len(elements) <= ddmin.FEW else (),
        untried=tuple(untried),
        environment=_environment(repo, good, bad, [element.change for element in elements]),
        # The first run is GOOD itself.
        most_runs=1 + ddmin.most(len(elements)) if elements else 0,
        commits=commit_history.describe_commits(repo, ports.history, good.snapshot, bad.snapshot),
    )
    setup = TrialSetup(good=good, bad=bad, elements=tuple(elements), first=first, session=session, rules=rules)
    return BisectTask(setup=setup, plan=shown)


def first_difference(ports: Ports, good: Run, bad: Run, rules: OutputRules | None = None) -> tuple[Divergence, bool]:
    """Return the first divergence of `bad` from `good`, and True if they recorded steps. Raises UsageError if equal."""
    if (good.parent and good.parent.digest) != (bad.parent and bad.parent.digest):
        raise UsageError(
            f"runs {good.id} and {bad.id} start from different checkpoints, so they have no step in common",
            hint="Compare the checkpoints with `m5ws checkpoint diff`, and bisect the runs that made them.",
        )
    for run in (good, bad):
        if run.segment is not None and run.segment.digest is not None:
            raise UsageError(f"run {run.id} is a replay of {run.segment} only", hint="Name runs that began at step 1.")
        if not ledger.attempts(ports.repo, run.id):
            raise UsageError(f"nothing to compare: run {run.id} has not started", hint="Name runs that were trained.")
    before, done = history.load(ports.repo, good.id), history.load(ports.repo, bad.id)
    comparison = compare.compare_histories(before, done)
    first = comparison.first()
    session = comparison.original.by_session or first is not None
    if not session:
        first = output_results.first_difference(ports.repo, ports.tracker, comparison, good.id, bad.id, rules)
    elif first is None and done.outcome == "finished":
        first = missing(comparison)
    if first is None:
        ended = "" if done.outcome == "finished" else f", and run {bad.id} {done.outcome or 'has not ended'} there"
        raise UsageError(
            f"runs {good.id} and {bad.id} have equal results in all common records, up to step {done.last_step}{ended}",
            hint="A bisection explains different results. `m5ws diff` shows different inputs.",
        )
    return first, session


def execute(
    ports: Ports,
    task: BisectTask,
    home: Path,
    author_dir: Path,
    max_runs: int,
    shown: TrialListeners,
    rebuilt: Rebuilt | None = None,
) -> BisectReport:
    """Run hybrids until the causes are known, no pinned difference is left, or `max_runs` are spent.

    `rebuilt` makes their environments, if the plan has distributions.
    """
    if not task.setup.elements:
        reason = f"no pinned input that a hybrid can combine differs between the runs. {_elsewhere(task.plan)}"
        return BisectReport(outcome="not explained", reason=reason, plan=task.plan)
    hybrids = HybridRuns(ports, task.setup, home, author_dir, max_runs, shown, rebuilt)
    causes: list[frozenset[InputDifference]] = []
    try:
        control = hybrids.trial(frozenset())
        if control.answer != "same":
            return _without_control(ports.repo, task, hybrids, control)
        for cause in ddmin.causes(task.setup.elements, lambda chosen: hybrids.trial(chosen).answer):
            causes.append(cause)  # noqa: PERF402 - earlier causes are kept if the search for the next is cut off
    except BudgetExhausted as spent:
        return _unfinished(task, hybrids, causes, spent)
    return _explained(task, hybrids, causes) if causes else _unexplained(task, hybrids)


def _without_control(repo: Repository, task: BisectTask, hybrids: HybridRuns, control: Trial) -> BisectReport:
    """Report that GOOD itself cannot be replayed here, so that hybrids would prove nothing."""
    good = task.setup.good.id
    changes = attempt_environments.between_first(repo, good, control.run) if control.run is not None else ()
    reason = f"run {good} cannot be replayed here, so nothing can be compared: its replay {control.reason}"
    if control.answer == "differs":
        reason = (
            f"run {good}, replayed here without changes, differs from its record: the environment changes bits, or an "
            f"operation is nondeterministic. `m5ws reproduce {good}` shows more. A bisection needs an equal replay"
        )
    return _report(task, hybrids, "not comparable", reason, here=changes)


def _explained(task: BisectTask, hybrids: HybridRuns, causes: Sequence[frozenset[InputDifference]]) -> BisectReport:
    rest = frozenset(task.setup.elements).difference(*causes)
    left = hybrids.trial(rest)
    enough = True if left.answer == "same" else None
    words = " or ".join(_described(task, cause) for cause in causes)
    each = "each by itself makes" if len(causes) > 1 else "makes"
    reason = f"{words} {each} the runs differ"
    good, bad = task.setup.good.id, task.setup.bad.id
    if enough:
        reason += f". With all other inputs of run {bad}, the result equals run {good} up to that step"
    else:
        reason += f". Other causes are possible: a hybrid with all other inputs of run {bad} {left.reason}"
    return _report(task, hybrids, "explained", reason, causes=causes, enough=enough)


def _unexplained(task: BisectTask, hybrids: HybridRuns) -> BisectReport:
    """Report that no pinned difference matters here, or that BAD's inputs do not run here."""
    bad = task.setup.bad.id
    everything = hybrids.trial(frozenset(task.setup.elements))
    if everything.answer == "unresolved":
        reason = f"the inputs of run {bad} do not run here up to the first difference: {everything.reason}"
        return _report(task, hybrids, "not comparable", reason)
    reason = f"a hybrid with every pinned difference of run {bad} still equals run {task.setup.good.id}. "
    return _report(task, hybrids, "not explained", reason + _elsewhere(task.plan))


def _unfinished(
    task: BisectTask, hybrids: HybridRuns, causes: Sequence[frozenset[InputDifference]], spent: BudgetExhausted
) -> BisectReport:
    reason = f"{spent}. {spent.hint}"
    if causes:
        words = " or ".join(_described(task, cause) for cause in causes)
        reason = f"{words} makes the runs differ. The search for other causes was cut off: {reason}"
        return _report(task, hybrids, "explained", reason, causes=causes)
    differing = [trial.taken for trial in hybrids.trials if trial.answer == "differs"]
    if differing:
        smallest = min(differing, key=len)
        reason += f" The smallest set so far that makes the runs differ: {', '.join(smallest)}"
    return _report(task, hybrids, "unfinished", reason)


def _report(
    task: BisectTask,
    hybrids: HybridRuns,
    outcome: Outcome,
    reason: str,
    *,
    causes: Sequence[frozenset[InputDifference]] = (),
    enough: bool | None = None,
    here: tuple[Change, ...] = (),
) -> BisectReport:
    return BisectReport(
        outcome=outcome,
        reason=reason,
        plan=task.plan,
        causes=tuple(_taken(task, cause) for cause in causes),
        enough=enough,
        trials=hybrids.trials,
        runs=hybrids.runs,
        here=here,
    )


def _taken(task: BisectTask, chosen: frozenset[InputDifference]) -> Names:
    return names([element for element in task.setup.elements if element in chosen])


def _described(task: BisectTask, cause: frozenset[InputDifference]) -> str:
    together = " together" if len(cause) > 1 else ""
    return f"{' and '.join(_taken(task, cause))}{together}"


def _elsewhere(shown: BisectPlan) -> str:
    """Return a sentence on causes outside the pinned inputs."""
    if any(change.rating != "cannot" for change in shown.environment):
        return "Their environments differ in ways that can change bits: see the list of environment differences"
    return "Their recorded environments are equal too: an operation is nondeterministic, or a machine had a fault"


def _environment(repo: Repository, good: Run, bad: Run, tried: Sequence[Change]) -> tuple[Change, ...]:
    """Return the observed differences of the environments, except effects of pinned or tested differences."""
    old, new = (snapshots.load(repo, run.snapshot).determinism for run in (good, bad))
    old_variables, new_variables = _variables(old, good), _variables(new, bad)
    follows = {change.name for change in changed_values("environment", "variable.", old_variables, new_variables)}
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
