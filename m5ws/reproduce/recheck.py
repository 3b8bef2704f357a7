"""The second replay of a run whose first replay diverged. It tests whether the run is deterministic.

Two replays that differ from each other prove that the run is not deterministic. They prove nothing about the original.
Two replays that agree are evidence that the original differs, and no proof that the run is always deterministic.
"""

import msgspec

from m5ws.agent.attempt_plan import AttemptPlan
from m5ws.agent.link import StartAgain
from m5ws.agent.ports import Ports, Watch
from m5ws.attempts import leader
from m5ws.attempts.results import AttemptResult
from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records.explanation import Explanation
from m5ws.records.ledger import COMPLETE, AnyEvent
from m5ws.records.reasons import Ended, Fact
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Divergence, Recheck, Verdict
from m5ws.repository.references import runs
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import results
from m5ws.reproduce.outputs.output_files import OutputRules
from m5ws.runs.history import History


def second_segment(replay: Run, comparison: Comparison, first: Divergence) -> Segment | None:
    """Return the segment of the second replay: from the start of `replay` to the step that differs.

    Return None to replay the whole run: a script without a session does not end after a step, and the weights at the
    end of a script are read when it ends.
    """
    if not comparison.original.by_session or first.kind == "final tensor":
        return replay.segment
    last = max(first.step, replay.begin + 1)
    whole = replay.segment or Segment(first=replay.begin, last=last)
    return msgspec.structs.replace(whole, last=last)


def replay(
    ports: Ports,
    planned: AttemptPlan,
    first_replay: Run,
    comparison: Comparison,
    divergence: Divergence,
    watch: Watch | None = None,
    progress: Progress | None = None,
    rules: OutputRules | None = None,
) -> Recheck:
    """Execute the second replay, and compare it with the first replay, in `comparison`.

    It ends where it differs from the first replay, or from the original. An error here leaves the question open, and
    the result of the first replay stands. Raises KeyboardInterrupt if the user stops it, and StartAgain.
    """
    last = planned.run.segment.last if planned.run.segment is not None else None
    source = (ports.repo, planned.run.id)
    with_first = Comparison(_up_to(comparison.replay, last), source)
    with_original = Comparison(_up_to(comparison.original, last), source)

    def feed(rank: str, event: AnyEvent) -> bool:
        is_decided = with_first.feed(rank, event)
        return with_original.feed(rank, event) or is_decided

    second = planned.run
    try:
        result = leader.execute(ports, planned, watch, progress, judge=feed)
        # Files and metrics that an incomplete replay did not write yet are no difference.
        decide = divergence.is_result or not comparison.original.by_session
        with_files = result.outcome in COMPLETE and decide
        for each in (with_first, with_original) if result.outcome in COMPLETE else ():
            each.compare_ends()
        parted, again = with_first.first(), with_original.first()
        if with_files and parted is None and comparison.replay.outcome in COMPLETE:
            parted = results.first_difference(ports.repo, ports.tracker, with_first, first_replay.id, second.id, rules)
        if with_files and again is None:
            original = first_replay.reproduces or ""
            again = results.first_difference(ports.repo, ports.tracker, with_original, original, second.id, rules)
    except StartAgain:
        raise
    except (M5Error, OSError) as error:
        return Recheck(replay=second.id if _begun(ports, second) else None, last=last, problem=str(error))
    if result.asked:
        raise KeyboardInterrupt
    return msgspec.structs.replace(compare_replays(divergence, parted, again, result), replay=second.id, last=last)


def is_unexplained(verdict: Verdict) -> bool:
    """Return True if no recorded change explains the difference: the checkpoint of a segment may be the cause."""
    return all(change.rating == "cannot" for change in verdict.changes)


def segment_from_start(original: Run, replay: Run, first: Divergence) -> Segment | None:
    """Return the steps from the run's start to the step that differs, if `replay` began with a checkpoint."""
    if replay.segment is None or replay.segment.digest is None or first.step <= original.begin:
        return None
    return Segment(first=original.begin, last=first.step)


def from_start(
    ports: Ports,
    planned: AttemptPlan,
    original: History,
    watch: Watch | None = None,
    progress: Progress | None = None,
    rules: OutputRules | None = None,
) -> bool | None:
    """Execute a replay from the start. Return True if it equals the original, None if that is unknown.

    With `rules`, the delivered results are compared too. Raises KeyboardInterrupt if the user stops it, and StartAgain.
    """
    comparison = Comparison(original, (ports.repo, planned.run.id))
    try:
        result = leader.execute(ports, planned, watch, progress, judge=comparison.feed)
        first = comparison.first()
        if first is None and rules is not None and result.outcome in COMPLETE:
            runs = planned.run.reproduces or "", planned.run.id
            first = results.first_difference(ports.repo, ports.tracker, comparison, *runs, rules)
    except StartAgain:
        raise
    except (M5Error, OSError):
        return None
    if result.asked:
        raise KeyboardInterrupt
    if first is not None:
        return False
    return True if result.outcome == "finished" and not gaps.missing(comparison) else None


def compare_replays(
    divergence: Divergence, parted: Divergence | None, again: Divergence | None, result: AttemptResult
) -> Recheck:
    """Return the result of a second replay, which differs from the first at `parted` and from the original at `again`.

    Both replays agree only if the second replay shows exactly the difference `found` by the first.
    """
    if parted is not None:
        as_original = again is None and _where(parted) == _where(divergence) and parted.replayed == divergence.original
        return Recheck(repeats=False, first=parted, as_original=as_original)
    if again is not None and (_where(again), again.replayed) == (_where(divergence), divergence.replayed):
        return Recheck(repeats=True)
    if result.outcome not in COMPLETE:
        ended = Ended(side="replay", outcome=result.outcome, reason=result.reason)
        return Recheck(ended=ended)
    return Recheck()


def judge_recheck(verdict: Verdict, recheck: Recheck) -> Verdict:
    """Return the verdict on a diverged run after its second replay."""
    outcome, reasons = verdict.outcome, (Fact(kind="recheck"), *verdict.reasons)
    if recheck.repeats is None:
        reasons = (*verdict.reasons, Fact(kind="recheck"))
    elif recheck.start_equal:
        outcome, reasons = "not comparable", reasons[:1]
    elif not recheck.repeats:
        outcome, reasons = "nondeterministic", reasons[:1]
    return msgspec.structs.replace(verdict, outcome=outcome, reasons=reasons, recheck=recheck)


def judge_traces(verdict: Verdict, explanation: Explanation) -> Verdict:
    """Return the verdict on a run with unchanged inputs, whose traced replays differ from each other.

    Earlier statements about two agreeing replays, or about the original, are dropped.
    """
    if explanation.repeats is not False or verdict.outcome != "diverged":
        return verdict
    reasons = (Fact(kind="traces differ"),)
    return msgspec.structs.replace(verdict, outcome="nondeterministic", reasons=reasons, explanation=explanation)


def without_recheck(verdict: Verdict) -> Verdict:
    """Return the verdict on a run that diverged once and was not replayed again."""
    return msgspec.structs.replace(verdict, reasons=(*verdict.reasons, Fact(kind="no recheck")))


def _up_to(history: History, last: int | None) -> History:
    return history if last is None else history.within(-1, last)


def _where(divergence: Divergence) -> tuple[int, int, str, str, str | None]:
    return divergence.step, divergence.rank, divergence.kind, divergence.quantity, divergence.place


def _begun(ports: Ports, second: Run) -> bool:
    """Return True if the run is in the store, so that a verdict can name it."""
    try:
        return runs.load(ports.repo, second.id) == second
    except (M5Error, OSError):
        return False
