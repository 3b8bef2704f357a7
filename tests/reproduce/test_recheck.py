"""The verdict after a second replay, in words that claim no more than the replays showed."""

from collections.abc import Mapping

import msgspec
import pytest

from m5ws.attempts.results import AttemptResult
from m5ws.environment.drift import rate
from m5ws.records.explanation import Explanation
from m5ws.records.failure import EndReason
from m5ws.records.ledger import Step
from m5ws.records.reasons import Differs
from m5ws.records.run import LaunchSpec, Run, Segment
from m5ws.records.verdict import Change, Divergence, Recheck, Verdict
from m5ws.reproduce import recheck
from m5ws.reproduce.compare import Comparison
from m5ws.runs.history import History
from m5ws.wording.comparisons import describe_problem
from m5ws.wording.lists import capitalise
from m5ws.wording.sentences import describe

_FIRST = Divergence(step=5, rank=0, quantity="loss", original="0x1p+0", replayed="0x1.1p+0")
_DIVERGED = Verdict(run="a" * 12, replay="b" * 12, outcome="diverged", first=_FIRST, reasons=(Differs(),))
_KERNEL, _LR = rate("environment", "kernel", "6.1", "6.2"), rate("config", "lr", "1", "2")


def test_two_replays_that_differ_give_the_verdict_nondeterministic() -> None:
    parted = Divergence(step=5, rank=0, quantity="loss", original="0x1.1p+0", replayed="0x1p+0")
    judged = recheck.judge_recheck(_DIVERGED, Recheck(replay="c" * 12, repeats=False, first=parted, as_original=True))
    assert judged.outcome == "nondeterministic" and judged.replays == ("b" * 12, "c" * 12)
    assert "first in loss at step 5 on rank 0" in describe(judged)
    assert "The second replay equals the original" in describe(judged)


@pytest.mark.parametrize("changes", [(), (_KERNEL,), (_LR,)])
def test_equal_replays_keep_the_reason_and_a_change_explains_the_difference(changes: tuple[Change, ...]) -> None:
    verdict = msgspec.structs.replace(_DIVERGED, changes=changes)
    judged = recheck.judge_recheck(verdict, Recheck(replay="c" * 12, repeats=True))
    agree = "two replays agree with each other and differ from the original"
    assert (judged.outcome, describe(judged)) == ("diverged", f"{agree}. {capitalise(describe(verdict))}")
    assert recheck.is_unexplained(verdict) == (_LR not in changes)


def test_an_equal_replay_from_the_start_gives_the_reason_inexact_restore() -> None:
    agree = Recheck(replay="c" * 12, repeats=True, start="d" * 12, start_equal=True)
    judged = recheck.judge_recheck(_DIVERGED, agree)
    assert judged.outcome == "not comparable" and judged.replays == ("b" * 12, "c" * 12, "d" * 12)
    assert describe(judged).startswith("inexact restore")
    for equal in (False, None):
        judged = recheck.judge_recheck(_DIVERGED, msgspec.structs.replace(agree, start_equal=equal))
        assert judged.outcome == "diverged" and "o recorded change" in describe(judged)
        assert ("from the start" in describe(judged)) == (equal is False)


def test_only_a_segment_that_began_with_a_checkpoint_is_replayed_from_the_start() -> None:
    original = msgspec.structs.replace(_run(), id="a" * 12)
    given = Segment(first=3, last=9, checkpoint="0000000003-0001", digest="1" * 64)
    assert recheck.segment_from_start(original, _run(given), _FIRST) == Segment(first=0, last=5)
    assert recheck.segment_from_start(original, _run(Segment(first=0, last=3)), _FIRST) is None
    assert recheck.segment_from_start(original, _run(), _FIRST) is None


def test_a_failed_second_replay_keeps_the_first_verdict() -> None:
    judged = recheck.judge_recheck(_DIVERGED, Recheck(problem="no space left"))
    assert judged.outcome == "diverged" and judged.replays == ("b" * 12,)
    assert describe(judged).startswith(describe(_DIVERGED)) and "no space left" in describe(judged)


def _result(outcome: str) -> AttemptResult:
    return AttemptResult(
        run="c" * 12, attempt=1, outcome=outcome, exit_code=0, reason=EndReason(kind="unsaved", problem="why")
    )


def test_replays_agree_only_if_the_same_difference_was_recorded_again() -> None:
    earlier = msgspec.structs.replace(_FIRST, step=4)
    assert recheck.compare_replays(_FIRST, None, _FIRST, _result("finished")).repeats is True
    for again, outcome, why in (
        (None, "finished", "did not record the quantity"),
        (earlier, "failed", "it failed: why"),
    ):
        second = recheck.compare_replays(_FIRST, None, again, _result(outcome))
        assert second.repeats is None and why in describe_problem(second)


def test_a_second_replay_equal_to_the_original_is_distinguished_from_a_third_result() -> None:
    back = msgspec.structs.replace(_FIRST, original=_FIRST.replayed, replayed=_FIRST.original)
    assert recheck.compare_replays(_FIRST, back, None, _result("finished")).as_original
    third = msgspec.structs.replace(_FIRST, original=_FIRST.replayed, replayed="0x1.2p+0")
    second = recheck.compare_replays(_FIRST, third, third, _result("interrupted"))
    assert second.repeats is False and not second.as_original


def _run(segment: Segment | None = None) -> Run:
    return Run(id="b" * 12, snapshot="0" * 64, spec=LaunchSpec(command=("x",)), segment=segment)


def _comparison(*, by_steps: bool) -> Comparison:
    steps: dict[int, Mapping[int, Step]] = {0: {1: Step(step=1, quantities={})}} if by_steps else {}
    return Comparison(History(steps=steps))


def test_only_the_steps_up_to_the_difference_are_replayed_again() -> None:
    given = Segment(first=3, last=9, checkpoint="0000000003-0001", digest="1" * 64)
    recorded = _comparison(by_steps=True)
    assert recheck.second_segment(_run(), recorded, _FIRST) == Segment(first=0, last=5)
    again = recheck.second_segment(_run(given), recorded, _FIRST)
    assert again == Segment(first=3, last=5, checkpoint=given.checkpoint, digest=given.digest)
    initial = Divergence(step=0, rank=0, quantity="tensor w", original="1", replayed="2")
    assert recheck.second_segment(_run(), recorded, initial) == Segment(first=0, last=1)
    assert recheck.second_segment(_run(), _comparison(by_steps=False), _FIRST) is None


def test_traced_replays_that_differ_revoke_the_agreement_of_two_replays() -> None:
    verdict = recheck.judge_recheck(_DIVERGED, Recheck(repeats=True))
    explained = Explanation(first=3, last=3, sides=(), repeats=False)
    judged = recheck.judge_traces(verdict, explained)
    assert judged.outcome == "nondeterministic" and "agree with each other" not in describe(judged)
    same = msgspec.structs.replace(explained, repeats=True)
    assert recheck.judge_traces(verdict, same) == verdict
