"""Sentences of verdicts: each kind of reason has one, and a difference names its evidence and no other cause."""

import re
from collections.abc import Sequence
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.cli.terminal import output
from m5ws.environment.drift import rate
from m5ws.records.failure import EndReason, Failure
from m5ws.records.reasons import (
    Differs,
    Ended,
    Equal,
    Fact,
    Gap,
    GapKind,
    Interruption,
    JointReason,
    Reason,
    Resume,
    Unreadable,
)
from m5ws.records.run import Segment
from m5ws.records.verdict import Change, Divergence, Outcome, QuantityKind, Recheck, Verdict
from m5ws.wording.changes import is_named_whole
from m5ws.wording.sentences import describe

_CHANGES = (
    rate("environment", "kernel", "6.1", "6.2"),
    rate("environment", "distribution.torch", "2.12.0", "2.13.0"),
    rate("environment", "threads", "1", "2"),
    rate("code", "train.py", "a", "b"),
    rate("code", "new.py", None, "b"),
    rate("tokenizer", "tokenizer.json", "a", None),
    rate("data", "corpus", "files 1", "files 2"),
    rate("launch", "seed", "1", "2"),
    rate("config", "optimizer.lr", "0.001", "0.002"),
    rate("argument", "lr", "0.001", "0.002"),
    *(rate("config", f"key{number}", "1", "2") for number in range(4)),
)
_QUANTITIES: tuple[tuple[QuantityKind, str], ...] = (
    ("value", "loss"),
    ("value", "batch"),
    ("generator", "torch"),
    ("tensor", "model.w"),
    ("file", "out/a.bin"),
    ("metric", "loss"),
    ("checkpoint", "checkpoint"),
)


def _differing(step: int, rank: int = 0, quantity: tuple[QuantityKind, str] = ("value", "loss")) -> Divergence:
    kind, name = quantity
    return Divergence(step=step, rank=rank, kind=kind, quantity=name, original="a", replayed="b")


def _explain(first: Divergence, changes: Sequence[Change], reason: Differs | None = None) -> str:
    """Return the sentence of a diverged run."""
    reasons = (reason or Differs(),)
    return describe(
        Verdict(run="a", replay="b", outcome="diverged", first=first, changes=tuple(changes), reasons=reasons)
    )


_firsts = st.builds(_differing, st.integers(0, 9), st.integers(0, 1), st.sampled_from(_QUANTITIES))
_changes = st.sets(st.sampled_from(_CHANGES)).map(lambda some: tuple(sorted(some, key=repr)))
_resumes = st.none() | st.builds(
    Resume, step=st.integers(1, 9), is_cause=st.booleans(), notices=st.sampled_from([(), ("the loader was skipped",)])
)


@given(_firsts, _changes, _resumes, st.none() | st.just("the ledger of rank 0 was edited"))
def test_a_reason_names_the_resume_or_each_change_that_can_alter_bits(
    first: Divergence, changes: tuple[Change, ...], resume: Resume | None, rewritten: str | None
) -> None:
    text = _explain(first, changes, Differs(resume=resume, rewritten=rewritten))
    able = [change for change in changes if change.rating != "cannot"]
    by_resume = resume is not None and resume.is_cause
    assert text.startswith("the resume of the original after step") == by_resume
    assert ("is the only recorded change that can alter bits" in text) == (len(able) == 1 and not by_resume)
    assert ("`m5ws bisect`" in text) == (len(able) > 1 and not by_resume)
    assert ("the ledger" in text) == (rewritten is not None and not able and not by_resume)
    assert ("no recorded change explains" in text) == (rewritten is None and not able and not by_resume)
    for change in able[:8]:
        assert re.search(rf"\b{change.part} {re.escape(change.name)}\b", text)
    assert ("and 1 more" in text) == (len(able) == 9)
    assert "kernel" not in text and "ikely" not in text
    assert ("resumed" in text or by_resume) == (resume is not None)


def test_changed_files_are_named_without_digests_and_other_changes_with_both_values() -> None:
    words = {change.name: _explain(_differing(3), [change]).partition(" is the only")[0] for change in _CHANGES[1:]}
    assert words["train.py"] == "code train.py was changed" and words["new.py"] == "code new.py was added"
    assert words["tokenizer.json"] == "tokenizer tokenizer.json was removed"
    assert words["optimizer.lr"] == "config optimizer.lr: 0.001 → 0.002"
    whole = {change.name for change in _CHANGES if is_named_whole(change)}
    assert not whole & {"train.py", "new.py", "tokenizer.json", "corpus", "kernel"} and "seed" in whole


_FIRST = _differing(3)
_BASE = Verdict(
    run="a",
    replay="b",
    outcome="diverged",
    first=_FIRST,
    changes=(rate("config", "lr", "1", "2"),),
    recheck=Recheck(replay="c", repeats=True),
)
_KINDS: list[Reason] = [
    *(Differs(resume=resume) for resume in (None, Resume(step=2, is_cause=True), Resume(step=None, is_cause=False))),
    Equal(weights=True, steps=1),
    Equal(evidence={"files": 2}, doubt=Gap(kind="no end")),
    Ended(side="original", outcome="failed", reason=EndReason(kind="stopped", signal="SIGTERM")),
    Ended(side="replay", outcome="failed"),
    Ended(side="training", outcome="finished"),
    Unreadable(problem="a chunk is missing"),
    *(Interruption(after=5, resumed=resumed) for resumed in (None, 0, 2)),
    Interruption(after=5, differs=True),
    Interruption(after=5, missed=True),
    *(Fact(kind=kind) for kind in get_args(get_type_hints(Fact)["kind"])),
]


def test_each_kind_of_reason_has_a_sentence_of_its_own() -> None:
    assert {type(reason) for reason in _KINDS} == set(get_args(Reason))
    sentences = {describe(msgspec.structs.replace(_BASE, reasons=(reason,))) for reason in _KINDS}
    assert len(sentences) == len(_KINDS) and not any("None" in sentence or "{" in sentence for sentence in sentences)


@pytest.mark.parametrize("kind", get_args(GapKind))
def test_each_kind_of_gap_has_a_sentence(kind: GapKind) -> None:
    gap = Gap(kind=kind, ranks="rank 0", steps="1-3", step=3, number=2, name="n", digest="d" * 64, side="replay")
    sentence = describe(
        msgspec.structs.replace(
            gap, original=EndReason(kind="enough steps"), replayed=EndReason(kind="supervisor killed")
        )
    )
    assert sentence and "None" not in sentence and "{" not in sentence


def test_each_result_of_a_second_replay_has_a_sentence_of_its_own() -> None:
    again = Recheck(replay="c", last=3)
    results = [
        again,
        msgspec.structs.replace(again, problem="full"),
        msgspec.structs.replace(again, ended=Ended(side="replay", outcome="failed")),
        *(msgspec.structs.replace(again, repeats=True, start="d", start_equal=equal) for equal in (None, True, False)),
        *(msgspec.structs.replace(again, repeats=False, first=_FIRST, as_original=back) for back in (True, False)),
        *(Recheck(start="d", start_equal=equal) for equal in (None, True, False)),
    ]
    base = msgspec.structs.replace(_BASE, reasons=(Fact(kind="recheck"),))
    sentences = [describe(msgspec.structs.replace(base, recheck=result)) for result in results]
    assert len(set(sentences)) == len(results)


def test_each_joint_reason_and_each_outcome_has_a_sentence_of_its_own() -> None:
    part = Segment(first=0, last=4)
    kinds = get_args(get_type_hints(JointReason)["kind"])
    joint = {describe(JointReason(kind=kind, replay="b", equal=(part,), last=8, of=2)) for kind in kinds}
    sample = describe(JointReason(kind="some segments", equal=(part,), last=8, drawn=1, of=3, chance=1 / 3))
    assert len(joint) == len(kinds) and "33%" in sample
    bare = {describe(Verdict(run="a", replay="b", outcome=outcome)) for outcome in get_args(Outcome)}
    assert len(bare) == len(get_args(Outcome))


def test_plain_data_has_the_fields_and_the_sentence_of_each_record() -> None:
    gap = Gap(kind="no end")
    verdict = msgspec.structs.replace(_BASE, not_compared=(gap,), reasons=(Equal(doubt=gap),))
    printed = output.plain({"verdicts": [verdict]})
    assert isinstance(printed, dict)
    (plain,) = printed["verdicts"]
    assert plain["sentence"] == describe(verdict) and plain["reasons"][0]["type"] == "equal"
    assert plain["not_compared"][0]["sentence"] == describe(gap) == plain["reasons"][0]["doubt"]["sentence"]


def test_a_record_without_its_fields_has_a_sentence() -> None:
    """A store may contain any record."""
    bare = Verdict(run="a", replay="b", outcome="diverged", reasons=tuple(_KINDS))
    gaps = [describe(Gap(kind=kind)) for kind in get_args(GapKind)]
    ends = [describe(EndReason(kind=kind)) for kind in get_args(get_type_hints(EndReason)["kind"])]
    joint = describe(JointReason(kind="some segments", drawn=3, of=0))
    assert all([describe(bare), *gaps, *ends[1:], joint, describe(Failure(type="Crash"))])
