"""Reasons: the resume before the first difference, or each recorded change that can alter bits, and no other cause."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment.drift import rate
from m5ws.records.ledger import INEXACT_RESUME, AttemptEnded, AttemptStarted, Notice, Step
from m5ws.records.verdict import Change, Divergence
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.verdict.reason import Resume, explain, find_resume, is_named_whole, with_threads
from m5ws.runs.history import History

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
_QUANTITIES = (
    "loss",
    "lr",
    "batch",
    "generator torch",
    "tensor model.w",
    "file out/a.bin",
    "metric loss",
    "checkpoint",
)

_firsts = st.builds(
    Divergence,
    step=st.integers(0, 9),
    rank=st.integers(0, 1),
    quantity=st.sampled_from(_QUANTITIES),
    original=st.just("a"),
    replayed=st.just("b"),
)
_changes = st.sets(st.sampled_from(_CHANGES)).map(lambda some: tuple(sorted(some, key=repr)))
_resumes = st.none() | st.builds(
    Resume, step=st.integers(1, 9), is_cause=st.booleans(), notices=st.sampled_from([(), ("the loader was skipped",)])
)


@given(_firsts, _changes, _resumes, st.none() | st.just("the ledger of rank 0 was edited"))
def test_a_reason_names_the_resume_or_each_change_that_can_alter_bits(
    first: Divergence, changes: tuple[Change, ...], resume: Resume | None, rewritten: str | None
) -> None:
    text = explain(first, changes, resume, rewritten)
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
    first = Divergence(step=3, rank=0, quantity="loss", original="a", replayed="b")
    words = {change.name: explain(first, [change]).partition(" is the only")[0] for change in _CHANGES[1:]}
    assert words["train.py"] == "code train.py was changed" and words["new.py"] == "code new.py was added"
    assert words["tokenizer.json"] == "tokenizer tokenizer.json was removed"
    assert words["optimizer.lr"] == "config optimizer.lr: 0.001 → 0.002"
    whole = {change.name for change in _CHANGES if is_named_whole(change)}
    assert not whole & {"train.py", "new.py", "tokenizer.json", "corpus", "kernel"} and "seed" in whole


@pytest.mark.parametrize(
    ("quantity", "step", "words"),
    [
        ("loss", 3, "loss at step 3 on rank 0"),
        ("tensor model.w", 3, "tensor model.w after step 3"),
        ("generator torch", 0, "generator torch before the first step"),
        ("file out/a", 0, "file out/a"),
    ],
)
def test_a_reason_contains_the_place_of_the_first_difference(quantity: str, step: int, words: str) -> None:
    first = Divergence(step=step, rank=0, quantity=quantity, original="a", replayed="b")
    assert explain(first, ()) == f"no recorded change explains the difference. The first difference is {words}"


def _resumed(at: int, *, notice_step: int | None = None) -> Comparison:
    """Return the comparison of a run of ten steps that was resumed after one."""
    history = History()
    for attempt, steps in ((1, range(1, at + 1)), (2, range(at + 1, 11))):
        resume = f"{at:010d}-0001" if attempt == 2 else None
        history.add("launcher", AttemptStarted(attempt=attempt, host="h", observed="0" * 64, resume=resume))
        for step in steps:
            history.add("0", Step(step=step, quantities={"loss": "0x1p+0"}))
        history.add("launcher", AttemptEnded(outcome="finished", exit_code=0, heads={}))
    if notice_step is not None:
        history.add("launcher", Notice(kind=INEXACT_RESUME, message="batch differs", step=notice_step))
    return Comparison(history)


@given(st.integers(1, 9), st.integers(1, 10), st.none() | st.integers(1, 10), st.integers(0, 9))
def test_a_resume_explains_a_difference_in_the_two_steps_after_it(
    at: int, step: int, notice_step: int | None, begin: int
) -> None:
    first = Divergence(step=step, rank=0, quantity="loss", original="a", replayed="b")
    found = find_resume(_resumed(at, notice_step=notice_step), first, begin)
    assert (found is not None) == (step > at >= begin)
    if found is not None:
        is_inexact = notice_step is not None and notice_step > at
        assert found.step == at and found.is_cause == (step <= at + 2 or is_inexact)


def test_a_file_has_no_step_and_names_the_resume_as_a_fact() -> None:
    first = Divergence(step=0, rank=0, quantity="file out/a", original="a", replayed="b")
    found = find_resume(_resumed(4), first, 0)
    assert found == Resume(step=4, is_cause=False)
    assert explain(first, (), found).endswith("The original was resumed after step 4")


def test_threads_that_a_side_changed_in_the_run_are_a_recorded_change() -> None:
    first = Divergence(step=6, rank=0, quantity="loss", original="a", replayed="b")
    comparison = _resumed(4)
    comparison.original.threads[0], comparison.replay.threads[0] = [(1, "1"), (5, "2")], [(1, "1")]
    (change,) = with_threads((), comparison, first)
    assert "threads of rank 0 in step 6: 2 → 1 is the only recorded change" in explain(first, [change])
    started = rate("environment", "threads", "2", "1")
    assert with_threads((started,), comparison, first) == (started,)
    assert with_threads((), comparison, msgspec.structs.replace(first, step=4)) == ()
