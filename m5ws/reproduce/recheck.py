"""The second replay of a run whose first one diverged: whether the run repeats itself, before the original is judged.

Two replays that differ from each other prove that the run is not deterministic, and say nothing of the original. Two
that agree put the original under suspicion; that they agree is evidence, not proof, that the run always repeats.
"""

from collections.abc import Sequence

import msgspec

from m5ws.errors import M5Error
from m5ws.progress import Progress
from m5ws.records.explanation import Explanation
from m5ws.records.ledger import COMPLETE, AnyEvent
from m5ws.records.run import Run, Segment
from m5ws.records.verdict import Divergence, Recheck, Verdict
from m5ws.repository import runs
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.outputs import results
from m5ws.reproduce.verdict import reason, suspicion
from m5ws.runs import run, supervise
from m5ws.runs.history import History


def part(replay: Run, comparison: Comparison, first: Divergence) -> Segment | None:
    """Return what is replayed again: from where `replay` began up to the step that differs, and no further.

    None for all of it: a script without a session knows no steps to end after.
    """
    if not comparison.original.by_steps:
        return None
    last = max(first.step, replay.begin + 1)
    whole = replay.segment or Segment(first=replay.begin, last=last)
    return msgspec.structs.replace(whole, last=last)


def replay(
    ports: supervise.Ports,
    planned: run.Plan,
    first_replay: Run,
    comparison: Comparison,
    found: Divergence,
    watch: supervise.Watch | None = None,
    progress: Progress | None = None,
    ignore: Sequence[str] = (),
) -> Recheck:
    """Execute the second replay and hold it against the first, which `comparison` has; stop where they part.

    What goes wrong here leaves a question open, and takes nothing from what the first replay found. Raises
    KeyboardInterrupt if the user stops it.
    """
    last = planned.run.segment.last if planned.run.segment is not None else None
    with_first = Comparison(_up_to(comparison.replay, last))
    with_original = Comparison(_up_to(comparison.original, last))

    def feed(rank: str, event: AnyEvent) -> bool:
        with_first.feed(rank, event)
        with_original.feed(rank, event)
        stop = bool(watch and watch(rank, event))
        return stop or with_first.settled()

    second = planned.run
    try:
        result = supervise.execute(ports, planned, feed, progress)
        parted = _difference(ports, with_first, first_replay.id, second.id, ignore)
        again = _difference(ports, with_original, first_replay.reproduces or "", second.id, ignore)
    except (M5Error, OSError) as error:
        return Recheck(replay=second.id if _begun(ports, second) else None, last=last, reason=str(error))
    if result.asked:
        raise KeyboardInterrupt
    if result.outcome not in COMPLETE and not comparison.original.by_steps:
        # Files and metrics that it did not come to are no difference.
        parted = again = None
    return msgspec.structs.replace(found_again(found, parted, again, result), replay=second.id, last=last)


def suspects(verdict: Verdict) -> bool:
    """Return whether a verdict would blame the original, since no recorded change explains what differs."""
    return reason.is_sign(verdict.reason) or reason.is_unknown(verdict.reason)


def whole(original: Run, replay: Run, first: Divergence) -> Segment | None:
    """Return the steps from the run's start up to the one that differs, if `replay` began with a checkpoint of it."""
    if replay.segment is None or replay.segment.digest is None or first.step <= original.begin:
        return None
    return Segment(first=original.begin, last=first.step)


def from_start(
    ports: supervise.Ports,
    planned: run.Plan,
    original: History,
    watch: supervise.Watch | None = None,
    progress: Progress | None = None,
) -> bool | None:
    """Execute a replay from the start; return True if it is equal to the original, None if that is not known.

    Raises KeyboardInterrupt if the user stops it.
    """
    comparison = Comparison(original)

    def feed(rank: str, event: AnyEvent) -> bool:
        comparison.feed(rank, event)
        return bool(watch and watch(rank, event)) or comparison.settled()

    try:
        result = supervise.execute(ports, planned, feed, progress)
    except (M5Error, OSError):
        return None
    if result.asked:
        raise KeyboardInterrupt
    if comparison.first() is not None:
        return False
    return True if result.outcome == "finished" and not comparison.missing() else None


def found_again(
    found: Divergence, parted: Divergence | None, again: Divergence | None, result: supervise.Result
) -> Recheck:
    """Return what a second replay says, which parts from the first at `parted` and from the original at `again`.

    That both agree is said only if the second showed the very difference that the first one `found`.
    """
    if parted is not None:
        as_original = again is None and _where(parted) == _where(found) and parted.replayed == found.original
        return Recheck(repeats=False, first=parted, as_original=as_original)
    if again is not None and (_where(again), again.replayed) == (_where(found), found.replayed):
        return Recheck(repeats=True)
    if result.outcome not in COMPLETE:
        return Recheck(reason=f"it {result.outcome}: {result.message}")
    return Recheck(reason=f"it did not record {found.quantity} of step {found.step} again")


def judged(verdict: Verdict, recheck: Recheck) -> Verdict:
    """Return the verdict on a run that diverged, now that it was replayed twice."""
    assert verdict.first is not None
    outcome = verdict.outcome
    if recheck.repeats is None:
        words = f"{verdict.reason}. A second replay could not tell whether the run repeats itself: {recheck.reason}"
    elif recheck.start_equal:
        outcome = "not comparable"
        words = (
            "inexact restore: two replays from the checkpoint agree with each other and not with the original, and a "
            f"replay from the start is equal to it up to step {verdict.first.step}. The next step depends on something "
            "that the checkpoint does not hold; nothing is said against the original, and `m5ws certify` tries restores"
        )
    elif recheck.repeats:
        also = ", nor does one from the start" if recheck.start_equal is False else ""
        suspected = suspicion.of_original(verdict, verdict.first)
        words = f"two replays agree with each other and not with the original{also}{suspected}"
    else:
        assert recheck.first is not None
        outcome = "nondeterministic"
        equal = ", though the second is equal to it up to there" if recheck.as_original else ""
        words = (
            f"two replays differ from each other, first in {reason.named(recheck.first)}: the run does not repeat "
            f"itself, so nothing is said of the original{equal}. It points to {reason.pointer(recheck.first)}"
        )
    return msgspec.structs.replace(verdict, outcome=outcome, reason=words, recheck=recheck)


def looked_into(verdict: Verdict, explanation: Explanation) -> Verdict:
    """Return the verdict on a run whose replays with a look inside have differed, though nothing was changed.

    Earlier statements about two replays that agree, or about the original, are dropped.
    """
    if explanation.repeats is not False or verdict.outcome != "diverged":
        return verdict
    where = f", first in {explanation.place.words}" if explanation.place is not None else ""
    words = (
        f"two replays with a look inside differ from each other{where}: the run does not repeat itself, so nothing is "
        "said of the original"
    )
    return msgspec.structs.replace(verdict, outcome="nondeterministic", reason=words)


def left_out(verdict: Verdict) -> Verdict:
    """Return the verdict on a run that diverged once, and was not replayed again."""
    unsure = "without a second replay it is not known whether the run repeats itself"
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}; {unsure}")


def _up_to(history: History, last: int | None) -> History:
    return history if last is None else history.within(-1, last)


def _difference(
    ports: supervise.Ports, comparison: Comparison, before: str, after: str, ignore: Sequence[str]
) -> Divergence | None:
    if comparison.original.by_steps:
        return comparison.first()
    return results.first_difference(ports.repo, ports.tracker, comparison, before, after, ignore)


def _where(found: Divergence) -> tuple[int, int, str]:
    return found.step, found.rank, found.quantity


def _begun(ports: supervise.Ports, second: Run) -> bool:
    """Return whether there is a run that a verdict can name."""
    try:
        return runs.load(ports.repo, second.id) == second
    except (M5Error, OSError):
        return False
