"""`reproduce`: replay a run and return a verdict, with evidence, on whether it gives the same bits.

The verdict is *reproduced* only if the replay ended well, state was compared, the replay has every record of the
original, and every compared quantity is equal (promise 8).
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from m5ws.agent import recovery, untracked
from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import environment_check, leader, planning
from m5ws.attempts.results import AttemptResult
from m5ws.environment import drift, reads, usage
from m5ws.environment import recorded as pinned_environment
from m5ws.errors import M5Error, UsageError
from m5ws.progress import Progress, report
from m5ws.records.environment import Observed
from m5ws.records.ledger import AnyEvent
from m5ws.records.reasons import Fact
from m5ws.records.run import LaunchSpec, Run, Segment
from m5ws.records.verdict import Change, Divergence, Recheck, Verdict
from m5ws.repository import removals
from m5ws.repository.ledger import ledger
from m5ws.repository.references import checkpoints, runs, snapshots
from m5ws.repository.repository import Repository
from m5ws.reproduce import recheck, refusals
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.explain import explain
from m5ws.reproduce.outputs import results
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.reproduce.verdict import judgement
from m5ws.runs import history
from m5ws.snapshot.config import overrides
from m5ws.wording.verdicts import describe_verdict

_log = logging.getLogger(__name__)
_OF_DETERMINISM = ("cpu.capability", "cpu.portable", "threads")
"""Beginnings of the names of facts that the settings of `[determinism]` decide."""


class ReplayInterrupted(M5Error):
    """The user stopped a replay. A verdict known by then is published."""

    exit_code = 130
    hint = "Run `m5ws reproduce` again. A replay always starts from its beginning."


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run or segment to replay, and the changes to its inputs. A segment allows no changes.

    `env` is the reaction to an environment that could change bits. With `recheck`, a diverged replay is repeated before
    the verdict. With `explain`, the steps around a divergence are replayed and traced. `results` has the patterns of
    `[run] results`; with `strict`, output files are judged by their bytes.
    """

    original: str
    env: Literal["fail", "warn", "ignore"] = "fail"
    snapshot: str | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    nproc: int | None = None
    segment: Segment | None = None
    recheck: bool = True
    explain: bool = False
    results: tuple[str, ...] = ()
    strict: bool = False

    @property
    def rules(self) -> OutputRules:
        """The rules for delivered results."""
        return results.rules(self.results, strict=self.strict)


Announce = Callable[[tuple[Change, ...]], None]
"""Called with the drift of the environment, before the replay begins."""

OnRecheck = Callable[[Divergence, str], None]
"""Called with the first divergence and the id of the second replay, before it starts."""


class _Refused(Exception):
    """A replay does not begin, because its environment can change bits."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.outcome)
        self.verdict = verdict


class _Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks for the progress of the replays."""

    watch: Watch | None
    progress: Progress | None
    on_recheck: OnRecheck | None
    on_side: explain.OnSide | None


def plan(ports: Ports, request: ReplayRequest, home: Path, author_dir: Path) -> AttemptPlan:
    """Return the plan of the replay. Raises UsageError if the original recorded nothing to compare with."""
    original = runs.load(ports.repo, request.original)
    if not ledger.attempts(ports.repo, original.id):
        raise UsageError(
            f"nothing to compare with: run {original.id} has not started",
            hint="Start the run with `m5ws resume`, or name a run that was trained. `m5ws ls` lists runs.",
        )
    refuse_other_nodes(ports.repo, original, ports.place.nodes)
    spec = _spec(original.spec, request)
    snapshot, spec = overrides.change(ports.repo, request.snapshot or original.snapshot, spec, request.overrides)
    parent = original.parent
    if parent is not None and (snapshot, spec.command) != (original.snapshot, original.spec.command):
        # A fork made with these changes would use them, so the replay does too.
        parent = msgspec.structs.replace(parent, settings="script")
    replay = msgspec.structs.replace(
        planning.new_run(snapshot, spec, name=original.name, reproduces=original.id, parent=parent),
        segment=request.segment,
    )
    saved = sorted({checkpoints.step_of(label) for label in checkpoints.valid(ports.repo, original.id)})
    return planning.plan(
        ports.repo,
        replay,
        home,
        author_dir,
        ports.environment,
        ports.tracker,
        checkpoint_at=tuple(saved),
        python=ports.python,
        place=ports.place,
    )


def refuse_other_nodes(repo: Repository, original: Run, nodes: int) -> None:
    """Raise UsageError if a run's own launcher started its processes on another number of nodes."""
    started = ledger.started(repo, original.id, 1)
    if original.spec.nproc is None and started is not None and started.nodes != nodes:
        raise UsageError(
            f"the command of run {original.id} starts its own processes, on each of {started.nodes} nodes",
            hint=f"Reproduce the run with `--on NAME --nodes {started.nodes}`: otherwise the number of ranks differs.",
        )


def execute(
    ports: Ports,
    request: ReplayRequest,
    planned: AttemptPlan,
    announce: Announce,
    watch: Watch | None = None,
    progress: Progress | None = None,
    on_recheck: OnRecheck | None = None,
    on_side: explain.OnSide | None = None,
) -> Verdict:
    """Replay, compare while the ledger grows, and stop at the first divergence. Return and publish the verdict.

    A diverged replay is repeated up to the divergence before the verdict. Raises ReplayInterrupted.
    """
    home = _home(planned)
    report(progress, "reading the records of the original")
    original = history.load(ports.repo, request.original)
    planned = planning.repeat_fingerprints(planned, original.states.get(0, {}))
    report(progress, "checking the checkpoints of the original")
    if (hopeless := _hopeless(ports, planned, original)) is not None:
        return publish(ports, home, hopeless)
    part = request.segment
    ends_early = part is not None and part.last < original.last_step
    if part is not None:
        # State before the first step is compared; state that a checkpoint restored is given.
        original = original.within(part.first - (part.digest is None), part.last)
    comparison = Comparison(original, (ports.repo, planned.run.id))
    listeners = _Listeners(watch=watch, progress=progress, on_recheck=on_recheck, on_side=on_side)
    try:
        result, enough = _replayed(ports, request, planned, comparison, listeners, announce)
    except _Refused as refused:
        return publish(ports, home, refused.verdict)
    stopped = result.outcome == "interrupted" and (result.asked or not enough)
    interrupted: str | None = None
    if stopped and not (comparison.is_decided() or comparison.is_exhausted()):
        raise ReplayInterrupted(f"replay {planned.run.id} was stopped before a verdict was known")
    report(progress, "comparing the results")
    verdict = judgement.judge(ports, planned.run, comparison, result, request.rules, ends_early=ends_early)
    if verdict.outcome == "diverged" and _repeats_inputs(ports.repo, planned.run):
        if stopped or not request.recheck:
            verdict = recheck.without_recheck(verdict)
        else:
            verdict, interrupted = _rechecked(ports, request, planned, comparison, verdict, listeners)
    if request.explain and not stopped and interrupted is None:
        verdict, interrupted = _explained(ports, planned, comparison, verdict, listeners)
    report(progress, "publishing the verdict, also in MLflow" if ports.tracker else "publishing the verdict")
    publish(ports, home, verdict, is_followed=result.untracked == "")
    if interrupted is not None:
        raise ReplayInterrupted(
            f"{interrupted} was stopped. The first replay {verdict.outcome}: {describe_verdict(verdict)}"
        )
    return verdict


def _hopeless(ports: Ports, planned: AttemptPlan, original: history.History) -> Verdict | None:
    """Return the verdict on a replay that would prove nothing: without comparable records, or with foreign records."""
    if original.outcome in ("failed", "interrupted") and not original.by_steps:
        return refusals.of_failed(ports.repo, ports.sign(planned.run), original.outcome)
    if original.outcome is not None and results.is_nothing(original, ports.tracker, planned.run.reproduces or ""):
        left = results.not_kept("original", original)
        return refusals.refuse(ports.repo, ports.sign(planned.run), Fact(kind="nothing recorded"), left=left)
    return refusals.of_checkpoints(ports.repo, ports.sign(planned.run), original)


def _replayed(
    ports: Ports,
    request: ReplayRequest,
    planned: AttemptPlan,
    comparison: Comparison,
    listeners: _Listeners,
    announce: Announce,
) -> tuple[AttemptResult, bool]:
    """Execute and compare a replay. Raises _Refused before it begins, if its environment can change bits, or if files
    that the original read have changed.

    Return its result, and True if the comparison needed no more of it. Raises StartAgain.
    """
    enough = False
    if request.env != "ignore" and (changed := reads.changes_since(ports.repo, request.original)):
        announce(changed)
        if request.env == "fail":
            raise _Refused(refusals.refuse(ports.repo, ports.sign(planned.run), Fact(kind="reads"), changed))

    def accept(observed: Observed, others: Mapping[str, Observed]) -> None:
        drifted = (*environment_check.between_nodes(observed, others), *_drift(ports.repo, planned.run, observed))
        announce(drifted)
        if request.env == "fail" and drift.worst(drifted) in ("can", "does"):
            raise _Refused(refusals.refuse(ports.repo, ports.sign(planned.run), Fact(kind="environment"), drifted))

    def feed(rank: str, event: AnyEvent) -> bool:
        nonlocal enough
        enough = comparison.feed(rank, event) or comparison.is_exhausted()
        return enough

    result = leader.execute(ports, planned, listeners.watch, listeners.progress, accept=accept, judge=feed)
    return result, enough


def _repeats_inputs(repo: Repository, replay: Run) -> bool:
    """Return True if a replay has the inputs of the original.

    A replay with intended changes is expected to differ, so a second replay adds nothing.
    """
    original = runs.load(repo, replay.reproduces or "")
    return (replay.snapshot, replay.spec) == (original.snapshot, original.spec)


def _rechecked(
    ports: Ports,
    request: ReplayRequest,
    planned: AttemptPlan,
    comparison: Comparison,
    verdict: Verdict,
    listeners: _Listeners,
) -> tuple[Verdict, str | None]:
    """Make a second replay, from the same start up to the step that differs.

    Return the verdict, and the name of the second replay if the user stopped it.
    """
    assert verdict.first is not None
    part = recheck.second_segment(planned.run, comparison, verdict.first)
    home, author_dir = _home(planned), Path(planned.context.author_dir)
    try:
        second = plan(ports, msgspec.structs.replace(request, segment=part), home, author_dir)
        second = planning.repeat_fingerprints(second, planned.context.fingerprint_at or ())
    except (M5Error, OSError) as error:
        return recheck.judge_recheck(verdict, Recheck(problem=str(error))), None
    if listeners.on_recheck is not None:
        listeners.on_recheck(verdict.first, second.run.id)
    try:
        second_replay = recheck.replay(
            ports, second, planned.run, comparison, verdict.first, listeners.watch, listeners.progress, request.rules
        )
        if second_replay.repeats and recheck.is_unexplained(verdict):
            second_replay = _from_start(ports, request, planned, verdict.first, second_replay, listeners)
    except KeyboardInterrupt:
        return recheck.without_recheck(verdict), "the second replay"
    return recheck.judge_recheck(verdict, second_replay), None


def _from_start(
    ports: Ports,
    request: ReplayRequest,
    planned: AttemptPlan,
    first: Divergence,
    second_replay: Recheck,
    listeners: _Listeners,
) -> Recheck:
    """Return the recheck after a replay from the start: replays of a segment depend on its checkpoint."""
    original = runs.load(ports.repo, request.original)
    part = recheck.segment_from_start(original, planned.run, first)
    if part is None:
        return second_replay
    home, author_dir = _home(planned), Path(planned.context.author_dir)
    try:
        started = plan(ports, msgspec.structs.replace(request, segment=part), home, author_dir)
        recorded = history.load(ports.repo, request.original).within(part.first - 1, part.last)
    except (M5Error, OSError) as error:
        _log.warning("the replay from the start could not be planned: %s", error)
        return second_replay
    if listeners.on_recheck is not None:
        listeners.on_recheck(first, started.run.id)
    rules = request.rules if first.is_result else None
    equal = recheck.from_start(ports, started, recorded, listeners.watch, listeners.progress, rules)
    return msgspec.structs.replace(second_replay, start=started.run.id, start_equal=equal)


def _explained(
    ports: Ports, planned: AttemptPlan, comparison: Comparison, verdict: Verdict, listeners: _Listeners
) -> tuple[Verdict, str | None]:
    """Return the verdict, explained if it has a step that differs, and "the explanation" if the user stopped it."""
    first = verdict.first
    if first is None or verdict.outcome not in ("diverged", "nondeterministic") or not comparison.original.by_session:
        return verdict, None
    case = explain.ExplainContext(
        ports=ports,
        replay=planned,
        comparison=comparison,
        verdict=verdict,
        first=first,
        watch=listeners.watch,
        progress=listeners.progress,
        on_side=listeners.on_side,
    )
    explanation, stopped = explain.explain_divergence(case)
    verdict = msgspec.structs.replace(verdict, explanation=explanation)
    if _repeats_inputs(ports.repo, planned.run):
        verdict = recheck.judge_traces(verdict, explanation)
    return verdict, "the explanation" if stopped else None


def _home(planned: AttemptPlan) -> Path:
    return planned.directory.parent.parent.parent


def environment_drift(repo: Repository, original: str, observed: Observed) -> tuple[Change, ...]:
    """Return the drift of a new attempt's environment from the environment of a run's first attempt.

    Packages that no rank of the run loaded are rated as harmless. A verdict uses the packages that the new attempt's
    ranks loaded.
    """
    began = usage.EnvironmentSide(
        observed=pinned_environment.of_run(repo, original), usage=usage.of_run(repo, original)
    )
    return usage.before_launch(began, observed)


def _drift(repo: Repository, replay: Run, observed: Observed) -> tuple[Change, ...]:
    """Return the drift of a replay's environment, without facts that its other inputs decide.

    With other inputs, the variables of the launch are its own. With another determinism level, so are the instructions
    and threads of the processor.
    """
    changes = environment_drift(repo, replay.reproduces or "", observed)
    if _repeats_inputs(repo, replay):
        return changes
    original = runs.load(repo, replay.reproduces or "").snapshot
    levels = {snapshots.load(repo, snapshot).determinism for snapshot in (original, replay.snapshot)}
    own = (drift.VARIABLE, *(_OF_DETERMINISM if len(levels) > 1 else ()))
    return tuple(change for change in changes if not change.name.startswith(own))


def publish(ports: Ports, home: Path, verdict: Verdict, *, is_followed: bool = False) -> Verdict:
    """Publish a verdict, also in the tracker, and return it. If the store does not take it, it is delivered later.

    `is_followed` is as in `untracked.show_verdict`. Raises Removed if a run that the verdict rests on is removed.
    """
    try:
        runs.publish_verdict(ports.repo, verdict)
    except removals.Removed:
        raise
    except (M5Error, OSError) as error:
        _log.warning("the verdict could not be published; it is kept and delivered later: %s", error)
        recovery.keep_verdict(home, verdict)
    if ports.tracker is not None:
        untracked.show_verdict(ports.tracker, home, verdict.replay, is_followed=is_followed)
    return verdict


def _spec(spec: LaunchSpec, request: ReplayRequest) -> LaunchSpec:
    trainer, nproc = spec.trainer, spec.nproc
    if request.nproc is not None:
        trainer, nproc = planning.processes(spec.command, planning.RunOptions(nproc=request.nproc), trainer, nproc)
    seed = request.seed if request.seed is not None else spec.seed
    return msgspec.structs.replace(spec, seed=seed, trainer=trainer, nproc=nproc)
