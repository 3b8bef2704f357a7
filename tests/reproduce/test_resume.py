"""The resume before a first difference, and threads that a side changed during its run."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from m5ws.environment.drift import rate
from m5ws.records.ledger import AttemptEnded, AttemptStarted, Notice, Step
from m5ws.records.reasons import Resume
from m5ws.records.verdict import Divergence
from m5ws.reproduce.compare import Comparison
from m5ws.reproduce.verdict.resume import find_resume, with_threads
from m5ws.runs.history import History


def _resumed(at: int, *, notice_step: int | None = None) -> Comparison:
    """Return the comparison of a run of ten steps that was resumed after one."""
    history = History()
    for attempt, steps in ((1, range(1, at + 1)), (2, range(at + 1, 11))):
        resume = f"{at:010d}-0001" if attempt == 2 else None
        history.add("node", AttemptStarted(attempt=attempt, host="h", resume=resume))
        for step in steps:
            history.add("0", Step(step=step, quantities={"loss": "0x1p+0"}))
        history.add("node", AttemptEnded(outcome="finished", exit_code=0, heads={}))
    if notice_step is not None:
        history.add("node", Notice(kind="inexact-resume", message="batch differs", step=notice_step))
    return Comparison(history)


@given(st.integers(1, 9), st.integers(1, 10), st.none() | st.integers(1, 10), st.integers(0, 9))
def test_a_resume_explains_a_difference_in_the_next_two_steps(
    at: int, step: int, notice_step: int | None, begin: int
) -> None:
    first = Divergence(step=step, rank=0, quantity="loss", original="a", replayed="b")
    found = find_resume(_resumed(at, notice_step=notice_step), first, begin)
    assert (found is not None) == (step > at >= begin)
    if found is not None:
        is_inexact = notice_step is not None and notice_step > at
        assert found.step == at and found.is_cause == (step <= at + 2 or is_inexact)


def test_a_file_has_no_step_and_names_the_resume_as_a_fact() -> None:
    first = Divergence(step=0, rank=0, kind="file", quantity="out/a", original="a", replayed="b")
    found = find_resume(_resumed(4), first, 0)
    assert found == Resume(step=4, is_cause=False)


def test_threads_that_a_side_changed_in_the_run_are_a_recorded_change() -> None:
    first = Divergence(step=6, rank=0, quantity="loss", original="a", replayed="b")
    comparison = _resumed(4)
    comparison.original.threads[0], comparison.replay.threads[0] = [(1, "1"), (5, "2")], [(1, "1")]
    (change,) = with_threads((), comparison, first)
    assert (change.name, change.old, change.new) == ("threads of rank 0 in step 6", "2", "1")
    started = rate("environment", "threads", "2", "1")
    assert with_threads((started,), comparison, first) == (started,)
    assert with_threads((), comparison, msgspec.structs.replace(first, step=4)) == ()
