"""Suspicions of a verdict and its explanation: no cause that the replays exclude, and a machine fault last."""

import re
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.cli.terminal import explanation
from m5ws.environment.drift import rate
from m5ws.records.explanation import Explanation, FirstDifference, TracedReplay
from m5ws.records.verdict import Change, Divergence, Recheck, Verdict
from m5ws.reproduce import recheck
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.explain import explain
from m5ws.reproduce.explain.explain import ExplainContext, ReplayResult
from m5ws.reproduce.verdict import hints
from m5ws.reproduce.verdict.reason import reason
from tests.support.records import recorded_traces
from tests.support.records.recorded_traces import EXPECTED

_FAULT = re.compile(r"hardware|fault of|flipped")
_UNREPEATED = re.compile(r"not deterministic|does not repeat|not seeded|nondeterministic|another order")
_CHANGES = (
    rate("config", "optimizer.lr", "0.001", "0.002"),
    rate("code", "train.py", "a", "b"),
    rate("environment", "distribution.torch", "2.12", "2.13"),
    rate("environment", "kernel", "6.1", "6.2"),
)
_LONE = hints.Hint(words=f"model.w alone differs. {hints._LONE}", traces="lone tensor", strong=True)
_HINTS = (
    None,
    _LONE,
    hints.Hint(words="the arithmetic of the forward pass", traces="computation"),
    hints.record_hint("only the record differs"),
)
_QUANTITIES = ("loss", "lr", "batch", "generator torch", "tensor model.w", "file out/a.bin")

_firsts = st.builds(
    Divergence,
    step=st.integers(0, 3),
    rank=st.just(0),
    quantity=st.sampled_from(_QUANTITIES),
    original=st.just("a"),
    replayed=st.just("b"),
)
_rechecks = st.none() | st.builds(
    Recheck, repeats=st.none() | st.booleans(), first=_firsts, reason=st.just("it failed"),
    start_equal=st.none() | st.booleans(),
)  # fmt: skip


def _verdict(first: Divergence, changes: tuple[Change, ...], hint: hints.Hint | None, again: Recheck | None) -> Verdict:
    verdict = Verdict(
        run="a", replay="b", outcome="diverged", first=first, changes=changes, reason=reason(first, changes, hint)
    )
    if again is None:
        return recheck.without_recheck(verdict)
    again = again if again.repeats is False else msgspec.structs.replace(again, first=None)
    again = again if again.repeats else msgspec.structs.replace(again, start_equal=None)
    return recheck.judge_recheck(verdict, again)


def _check(verdict: Verdict) -> None:
    """Check all texts of a verdict against the results of its replays."""
    text = f"{verdict.reason}\n" + (
        "\n".join(explanation.format_explanation(verdict.explanation)) if verdict.explanation else ""
    )
    able = [change for change in verdict.changes if change.rating != "cannot"]
    fault = _FAULT.search(text)
    if fault is not None:
        assert verdict.recheck is not None and verdict.recheck.repeats, text
        assert not [change for change in able if change.part != "environment"], text
        plain = re.search(r"not recorded|if no code did", text)
        assert plain is not None and plain.start() < fault.start(), text
    if verdict.outcome == "diverged" and verdict.recheck is not None and verdict.recheck.repeats:
        assert not _UNREPEATED.search(text), text
    if verdict.outcome == "nondeterministic":
        assert "under suspicion" not in text and "in the original, " not in text, text
        assert not [change for change in _CHANGES[:3] if change.name in text], text


@given(_firsts, st.sets(st.sampled_from(_CHANGES)), st.sampled_from(_HINTS), _rechecks)
def test_a_verdict_suspects_nothing_that_its_replays_exclude(
    first: Divergence, changes: set[Change], hint: hints.Hint | None, again: Recheck | None
) -> None:
    _check(_verdict(first, tuple(sorted(changes, key=lambda change: change.name)), hint, again))


def test_a_fault_of_the_machine_is_named_when_all_else_is_excluded() -> None:
    first = Divergence(step=3, rank=0, quantity="tensor model.w", original="a", replayed="b")
    agree = Recheck(replay="c" * 12, repeats=True)
    for hint, changes, words in (
        (None, (), "if neither, a fault of its machine"),
        (_LONE, (), "if no code did, a bit that flipped"),
        (_LONE, _CHANGES[2:], "if no code did, a bit that flipped"),
    ):
        assert words in (_verdict(first, changes, hint, agree).reason or "")


def _case(recorded: recorded_traces.Recorded, verdict: Verdict) -> ExplainContext:
    comparison = Comparison(recorded.evidence.recorded)
    assert verdict.first is not None
    return ExplainContext(
        ports=cast(Any, None), replay=cast(Any, None), comparison=comparison, verdict=verdict, first=verdict.first
    )


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("before", [Recheck(repeats=True), Recheck(repeats=False), Recheck(reason="it failed"), None])
def test_what_recorded_replays_show_does_not_contradict_the_verdict(
    name: str, repeated: bool, before: Recheck | None
) -> None:
    recorded = recorded_traces.load(name)
    one, two = recorded.evidence.one, recorded.evidence.two
    place = cast(FirstDifference, recorded.judged()[0])
    first = Divergence(step=place.step, rank=0, quantity="loss", original="a", replayed="b")
    parted = before if before is None or before.repeats is not False else msgspec.structs.replace(before, first=first)
    verdict = _verdict(first, _CHANGES, None, parted)
    replay = ReplayResult(side=TracedReplay(side="replay"), look=two)
    again = ReplayResult(side=TracedReplay(side="again"), look=two if repeated else one)
    nothing = ReplayResult(side=TracedReplay(side="original", problem="not replayed"))
    explained = explain.combine_sides(_case(recorded, verdict), (recorded.first, recorded.last), replay, again, nothing)
    judged = recheck.judge_traces(msgspec.structs.replace(verdict, explanation=explained), explained)
    assert explained.repeats is repeated
    assert (judged.outcome == "nondeterministic") == (not repeated or verdict.outcome == "nondeterministic")
    _check(judged)


def test_replays_that_differ_in_a_look_take_back_that_two_agree() -> None:
    first = Divergence(step=3, rank=0, quantity="loss", original="a", replayed="b")
    verdict = _verdict(first, (), None, Recheck(repeats=True))
    explained = Explanation(first=3, last=3, sides=(), repeats=False)
    judged = recheck.judge_traces(verdict, explained)
    assert judged.outcome == "nondeterministic" and "agree with each other" not in (judged.reason or "")
    same = msgspec.structs.replace(explained, repeats=True)
    assert recheck.judge_traces(verdict, same) == verdict
