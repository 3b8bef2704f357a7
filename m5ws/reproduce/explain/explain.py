"""`reproduce --explain`: the place where a diverged replay differs from its original, and the cause.

The steps around the divergence are replayed with traces: twice as the replay did them, and once under the original's
recorded conditions, if these differ from the replay's and can be restored. Each traced replay is compared with the
records of its side, and discarded if it does not show the same values.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import leader, planning
from m5ws.diff import diff
from m5ws.environment import drift
from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records import codec
from m5ws.records.explanation import Cause, Explanation, FirstDifference, TracedReplay
from m5ws.records.launch import Trace
from m5ws.records.reasons import Ended
from m5ws.records.run import Run, Segment
from m5ws.records.trace import TraceEntry
from m5ws.records.verdict import Divergence, Verdict
from m5ws.repository.ledger.spool import SpoolReader
from m5ws.repository.references import checkpoints, runs
from m5ws.repository.repository import Repository
from m5ws.reproduce import compare
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.explain import causes, locate
from m5ws.reproduce.explain.locate import TraceView
from m5ws.runs import history
from m5ws.wording.comparisons import describe_ended
from m5ws.wording.comparisons import locate as locate_difference

_MOST_STEPS = 16
"""Limit of traced steps. Of a longer stretch without recorded state, the last steps are traced."""
_NO_ORIGINAL = (
    "the original cannot be replayed: its recorded conditions equal the replay's, so its replay would be the same"
)
_STOPPED = "not replayed: the user stopped before"
_NOTHING = "not replayed: the diverged replay failed, so there is nothing to compare with"

OnSide = Callable[[TracedReplay, Segment], None]
"""Called with a side and its steps, when its replay starts."""


class ExplainContext(msgspec.Struct, frozen=True, kw_only=True):
    """The divergence to explain: `first`, between `replay` and its original, which `comparison` contains.

    `watch`, `progress` and `on_side` follow the traced replays.
    """

    ports: Ports
    replay: AttemptPlan
    comparison: Comparison
    verdict: Verdict
    first: Divergence
    watch: Watch | None = None
    progress: Progress | None = None
    on_side: OnSide | None = None

    @property
    def repo(self) -> Repository:
        return self.ports.repo


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """A replayed side; `look` is None if the replay failed."""

    side: TracedReplay
    look: TraceView | None = None


def explain_divergence(case: ExplainContext) -> tuple[Explanation, bool]:
    """Replay the steps up to the divergence and record their modules.

    Return the explanation, with the failures that limit it, and True if the user stopped it.
    """
    first, last = window(case)
    try:
        return _replay_sides(case, (first, last))
    except (M5Error, OSError) as error:
        # The verdict took a replay, and is valid without an explanation.
        limit = f"the explanation was not finished: {error}"
        return Explanation(first=first, last=last, sides=(), limits=(limit,)), False


def _replay_sides(case: ExplainContext, steps: tuple[int, int]) -> tuple[Explanation, bool]:
    missing: str | None = None
    original = runs.load(case.repo, case.verdict.run)
    sides: list[ReplayResult] = []
    # The original comes last: without a replay that shows the difference it has no counterpart.
    for name, base in (("replay", case.replay.run), ("again", case.replay.run), ("original", original)):
        side = TracedReplay(side=name)  # type: ignore[arg-type]
        if missing is None and name == "original" and not _changed(case, original):
            missing = _NO_ORIGINAL
        if missing is not None:
            sides.append(ReplayResult(side=msgspec.structs.replace(side, problem=missing)))
            continue
        replayed, stopped = _replayed(case, side, base, steps)
        sides.append(replayed)
        missing = _STOPPED if stopped else _NOTHING if sides[0].look is None else None
    return combine_sides(case, steps, *sides), missing == _STOPPED


def window(case: ExplainContext) -> tuple[int, int]:
    """Return the steps to trace: from after the last state that is known to be equal to the step that differs."""
    begin = case.replay.run.begin
    last = max(case.first.step, begin + 1)
    both = case.comparison.original.states.get(0, {}).keys() & case.comparison.replay.states.get(0, {}).keys()
    equal = max((step for step in both if step < last and step < max(case.first.step, 1)), default=begin)
    return max(equal + 1, begin + 1, last - _MOST_STEPS + 1), last


def _changed(case: ExplainContext, original: Run) -> bool:
    """Return True if the replay's conditions differ from the original's in something that can be restored."""
    replay = case.replay.run
    return (replay.snapshot, replay.spec) != (original.snapshot, original.spec) or bool(_variables(case.verdict))


def _variables(verdict: Verdict) -> dict[str, str | None]:
    """Return the environment variables that differ, with the original's values; None for an unset variable."""
    prefix = drift.VARIABLE
    return {
        change.name.removeprefix(prefix): change.old
        for change in verdict.changes
        if change.part == "environment" and change.name.startswith(prefix)
    }


def _replayed(case: ExplainContext, side: TracedReplay, base: Run, steps: tuple[int, int]) -> tuple[ReplayResult, bool]:
    """Replay one side with traces. Return its trace, and True if the user stopped it."""
    try:
        planned = _plan(case, side, base, steps)
        side = msgspec.structs.replace(side, replay=planned.run.id)
        if case.on_side is not None and planned.run.segment is not None:
            case.on_side(side, planned.run.segment)
        result = leader.execute(case.ports, planned, case.watch, case.progress)
        look = TraceView(history=history.load(case.repo, planned.run.id), seen=_sights(planned))
    except (M5Error, OSError, KeyboardInterrupt) as error:
        known = side.replay if side.replay is not None and side.replay in runs.ids(case.repo) else None
        problem = str(error) or "it was stopped"
        stopped = isinstance(error, KeyboardInterrupt)
        return ReplayResult(side=msgspec.structs.replace(side, replay=known, problem=problem)), stopped
    if result.outcome != "finished":
        end = Ended(side="replay", outcome=result.outcome, reason=result.reason)
        ended = f"it {describe_ended(end)}"
        return ReplayResult(side=msgspec.structs.replace(side, problem=ended)), result.outcome == "interrupted"
    unlike = _unlike(case, side, planned.run, look)
    return ReplayResult(side=msgspec.structs.replace(side, agrees=unlike is None, problem=unlike), look=look), False


def _plan(case: ExplainContext, side: TracedReplay, base: Run, steps: tuple[int, int]) -> AttemptPlan:
    """Return the plan for one side, from the newest checkpoint of `base` before the traced steps."""
    home, author_dir = case.replay.directory.parent.parent.parent, Path(case.replay.context.author_dir)
    new = planning.new_run(base.snapshot, base.spec, name=base.name, reproduces=case.verdict.run, parent=base.parent)
    new = msgspec.structs.replace(new, segment=_segment(case.repo, base, *steps))
    at = case.replay.context.checkpoint_at
    ports = case.ports
    planned = planning.plan(
        ports.repo, new, home, author_dir, ports.environment, ports.tracker, checkpoint_at=at, python=ports.python
    )
    context = msgspec.structs.replace(
        planned.context, fingerprint_at=case.replay.context.fingerprint_at, trace=Trace(first=steps[0], last=steps[1])
    )
    planned = msgspec.structs.replace(planned, context=context)
    return _put_back(planned, _variables(case.verdict)) if side.side == "original" else planned


def _put_back(planned: AttemptPlan, variables: dict[str, str | None]) -> AttemptPlan:
    """Return the plan with the original's environment variables, except the variables that the launch sets itself."""
    request = planned.request
    others = {name: value for name, value in variables.items() if name not in request.environment}
    was = {name: value for name, value in others.items() if value is not None}
    request = msgspec.structs.replace(
        request,
        environment=request.environment | was,
        unset=tuple(name for name, value in others.items() if value is None),
    )
    return msgspec.structs.replace(planned, request=request)


def _segment(repo: Repository, base: Run, first: int, last: int) -> Segment:
    for label in reversed(checkpoints.valid(repo, base.id)):
        step = checkpoints.step_of(label)
        if base.begin < step < first:
            return Segment(first=step, last=last, checkpoint=label, digest=checkpoints.digest(repo, base.id, label))
    whole = base.segment or Segment(first=base.begin, last=last)
    return msgspec.structs.replace(whole, last=last)


def _sights(planned: AttemptPlan) -> dict[int, list[TraceEntry]]:
    """Return the trace of each rank of an attempt."""
    folder = Path(planned.context.spool_dir)
    return {
        int(path.stem): [codec.decode(event, TraceEntry, str(path)) for event in SpoolReader(path).read()]
        for path in sorted(folder.glob("*.trace"))
    }


def _unlike(case: ExplainContext, side: TracedReplay, replay: Run, look: TraceView) -> str | None:
    """Return the difference between a traced replay and its side's records, as text; None if it is equal."""
    segment = replay.segment
    assert segment is not None
    given = segment.first if segment.digest is not None else segment.first - 1
    new = compare.compare_histories(case.comparison.original.within(given, segment.last), look.history).first()
    if side.side == "original":
        if new is None:
            return None
        return f"the original cannot be replayed: its replay differs from it in {locate_difference(new)}"
    shown = (case.first.step, case.first.rank, case.first.kind, case.first.quantity, case.first.replayed)
    if new is not None and (new.step, new.rank, new.kind, new.quantity, new.replayed) == shown:
        return None
    return f"it did not repeat the difference: {locate_difference(case.first)}"


# --- the joint result of the sides --------------------------------------------------------------------------------


def combine_sides(
    case: ExplainContext, steps: tuple[int, int], replay: ReplayResult, again: ReplayResult, original: ReplayResult
) -> Explanation:
    """Return the explanation from all sides.

    Two replays of one side are compared first: no difference of conditions can explain a difference between them.
    """
    span = range(steps[0], steps[1] + 1)
    made = Explanation(
        first=steps[0],
        last=steps[1],
        sides=(original.side, replay.side, again.side),
        limits=tuple(_limits(replay, again, original)),
        causes=causes.of_changes(case.verdict.changes, certain=False) or (Cause(kind="unknown"),),
    )
    unrepeated = case.verdict.outcome == "nondeterministic"
    if unrepeated:
        # Replays with equal inputs differed before, so neither the original nor a recorded change is to blame.
        made = msgspec.structs.replace(made, causes=(Cause(kind="unknown"),))
    if replay.look is None:
        return made
    repeats: bool | None = None
    if again.look is not None:
        place = locate.first(replay.look, again.look, span)
        repeats = place is None
        if place is not None:
            return _with(case, made, "two replays", place, (replay.look, again.look), repeats=False)
    if unrepeated:
        return msgspec.structs.replace(made, repeats=repeats)
    between, left = "record and replay", TraceView(history=case.comparison.original)
    if original.look is not None and original.side.agrees:
        between, left = "original and replay", original.look
    place = locate.first(left, replay.look, span)
    if place is None:
        return msgspec.structs.replace(made, repeats=repeats)
    return _with(case, made, between, place, (left, replay.look), repeats=repeats)


def _with(
    case: ExplainContext,
    made: Explanation,
    between: str,
    place: FirstDifference,
    looks: tuple[TraceView, TraceView],
    *,
    repeats: bool | None,
) -> Explanation:
    original, replay, _ = made.sides
    both = between == "original and replay" and original.replay is not None and replay.replay is not None
    changes = case.verdict.changes if between == "record and replay" else ()
    if both:
        changes = diff.between_runs(case.repo, original.replay or "", replay.replay or "")
    evidence = causes.Evidence(
        place=place,
        one=looks[0],
        two=looks[1],
        changes=changes,
        same=between == "two replays",
        controlled=both and replay.agrees and repeats is True,
        recorded=case.comparison.original,
    )
    return msgspec.structs.replace(
        made, between=between, repeats=repeats, place=place, causes=causes.find_causes(evidence)
    )


def _limits(*sides: ReplayResult) -> list[str]:
    """Return the parts that could not be traced."""
    limits: dict[str, None] = {}
    for side in sides:
        if side.look is None:
            continue
        for notice in side.look.history.notices:
            if notice.kind == "not-traced":
                limits[notice.message] = None
        for rank, seen in side.look.seen.items():
            if seen and seen[-1].kind == "cut":
                limits[f"the trace of rank {rank} is cut off from step {seen[-1].step} on: it was too long"] = None
            if not seen:
                limits[f"the trace of rank {rank} is empty: the script did not do these steps in its session"] = None
    return list(limits)
