"""Comparison of a replay with its original: the first difference by step and cause, and the list of gaps."""

from typing import Any

import msgspec
import pytest

from m5ws.records.ledger import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Observation,
    RankEnded,
    RankStarted,
    State,
    Step,
)
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison, compare_histories
from m5ws.reproduce.verdict import judgement, reason
from m5ws.runs.history import History
from m5ws.runs.supervise import AttemptResult

_LAST = 6


def _events(
    rank: int,
    *,
    loss: dict[int, str] | None = None,
    batch: dict[int, str] | None = None,
    tensors: dict[int, dict[str, str]] | None = None,
    generator: dict[int, str] | None = None,
    last: int = _LAST,
    every: int = 2,
) -> list[AnyEvent]:
    """Return the events of one rank: equal for equal arguments."""
    events: list[AnyEvent] = [RankStarted(rank=rank, world=2, pid=1)]
    for step in range(last + 1):
        if step:
            quantities = {"loss": (loss or {}).get(step, f"l{step}"), "lr": "0x1p-10"}
            events.append(Step(step=step, quantities=quantities, batch=(batch or {}).get(step, f"b{step}")))
        if step % every == 0:
            named = {"model.a": f"a{step}", "model.b": f"b{step}"} | (tensors or {}).get(step, {})
            drawn = {"torch": (generator or {}).get(step, f"g{step}")}
            events.append(State(step=step, tensors=named if rank == 0 else {}, generators=drawn))
    return [*events, RankEnded(rank=rank)]


def _history(*ranks: list[AnyEvent], outcome: str = "finished") -> History:
    history = History(steps={}, states={}, contents={}, facts={}, notices=[])
    for rank, events in enumerate(ranks):
        for event in events:
            history.add(str(rank), event)
    history.add("launcher", AttemptEnded(outcome=outcome, exit_code=0))  # type: ignore[arg-type]
    return history


def _compared(original: History, *ranks: list[AnyEvent]) -> Comparison:
    comparison = Comparison(original)
    for rank, events in enumerate(ranks):
        for event in events:
            comparison.feed(str(rank), event)
    return comparison


def test_equal_runs_have_no_divergence_and_nothing_missing() -> None:
    comparison = _compared(_history(_events(0), _events(1)), _events(0), _events(1))
    assert comparison.first() is None and gaps.missing(comparison) == () and comparison.state_compared()
    assert comparison.equal["steps"] == 2 * _LAST
    assert comparison.equal["tensors"] == 2 * 4


def test_a_difference_in_the_state_is_named_with_the_last_equal_state_before_it() -> None:
    original = _history(_events(0), _events(1))
    changed = _compared(original, _events(0, tensors={4: {"model.a": "x"}}), _events(1)).first()
    assert changed is not None and (changed.step, changed.equal_after) == (4, 2)
    assert "equal after step 2" in reason.place_of(changed)
    # A replay that lacks the state before does not prove it equal.
    sparse = [
        event
        for event in _events(0, tensors={4: {"model.a": "x"}})
        if not (isinstance(event, State) and event.step == 2)
    ]
    changed = _compared(original, sparse, _events(1)).first()
    assert changed is not None and changed.equal_after == 0
    dense = _history(_events(0, every=1), _events(1, every=1))
    changed = _compared(dense, _events(0, tensors={4: {"model.a": "x"}}, every=1), _events(1, every=1)).first()
    assert changed is not None and changed.equal_after is None
    value = _compared(original, _events(0, loss={4: "x"}), _events(1)).first()
    assert value is not None and value.equal_after is None


def test_a_step_after_a_guessed_place_is_compared_and_not_judged() -> None:
    first: AnyEvent = Observation(rank=0, after=0)
    second: list[AnyEvent] = [
        AttemptStarted(attempt=2, host="h", observed="0" * 64),
        Observation(rank=0, after=2, guessed=True),
    ]
    events = _events(0, loss={5: "x"}, last=5)
    original = _history([first, *events, *second, *[event for event in events if getattr(event, "step", 0) > 2]])
    comparison = _compared(original, [first, *_events(0)])
    assert comparison.first() is None and gaps.missing(comparison) == () and comparison.state_compared()
    (line,) = gaps.unplaced(comparison)
    assert "5-6" in line  # One differs, and the other was not done by the original.
    assert comparison.equal["steps"] == 4
    earlier = _compared(original, [first, *_events(0, loss={2: "y"})]).first()
    assert earlier is not None and earlier.step == 2
    shorter = _compared(original, [first, *_events(0, last=3)])
    assert any("4-5 were not replayed" in line for line in gaps.unplaced(shorter)) and gaps.missing(shorter) == ()
    # A later attempt with a proven place does the steps after a guessed one again.
    third = AttemptStarted(attempt=3, host="h", observed="0" * 64)
    for after, guessed in ((1, None), (2, 2), (4, 2)):
        assert _history([first, *events, *second, third, Observation(rank=0, after=after)]).guessed == guessed


def test_values_of_passes_before_the_first_step_of_an_attempt_are_not_compared() -> None:
    def resumed(passes: int, **values: Any) -> History:
        events = _events(0, **values)
        began = [AttemptStarted(attempt=number, host="h", observed="0" * 64) for number in (1, 2)]
        first, *later = [event for event in events if isinstance(event, (Step, State)) and event.step > 2]
        assert isinstance(first, Step)
        first = msgspec.structs.replace(first, passes=passes)
        places = [Observation(rank=0, after=after) for after in (0, 2)]
        return _history([began[0], places[0], *events, began[1], places[1], first, *later])

    replay = [Observation(rank=0, after=0), *_events(0)]
    assert _compared(resumed(0, loss={3: "x"}), replay).first() is not None
    assert _compared(resumed(2, loss={3: "x"}), replay).first() is None
    assert _compared(resumed(2, loss={4: "x"}), replay).first() is not None
    assert _compared(resumed(2, tensors={4: {"model.a": "x"}}), replay).first() is not None


def test_values_of_passes_do_not_decide_where_the_first_step_of_an_attempt_has_the_same_gradients() -> None:
    """A script may do as many passes before that step as the original did there, and others."""

    def resumed(norm: str, loss: str) -> History:
        first = Step(step=3, quantities={"loss": loss, "grad_norm": norm}, passes=2)
        began = [AttemptStarted(attempt=number, host="h", observed="0" * 64) for number in (1, 2)]
        places = [Observation(rank=0, after=after) for after in (0, 2)]
        return _history([began[0], places[0], *_events(0, last=2), began[1], places[1], first])

    for norm, loss, differs in (("n", "x", False), ("n", "l", False), ("m", "x", True)):
        comparison = compare_histories(resumed("n", "l"), resumed(norm, loss))
        assert (comparison.first() is not None) == differs


@pytest.mark.parametrize(
    ("after", "observed", "changed", "judged"),
    [
        (2, True, {4: "x", 6: "y"}, None),
        (2, True, {6: "y"}, 6),  # Restored, and drawn from later.
        (2, True, {2: "x", 4: "x"}, 2),  # Different before the resume.
        (0, True, {4: "x"}, 4),  # It started from the beginning.
        (2, False, {4: "x"}, 4),  # A session restores all generators.
    ],
)
def test_generators_that_a_script_s_own_resume_does_not_restore_are_kept_apart(
    after: int, observed: bool, changed: dict[int, str], judged: int | None
) -> None:
    def side(changed: dict[int, str], **values: dict[int, str]) -> History:
        events = _events(0, generator=changed, **values)  # type: ignore[arg-type]
        cut = next(place for place, event in enumerate(events) if getattr(event, "step", 0) > after)
        resume = f"{after:010d}-0001" if after and not observed else None
        began: list[AnyEvent] = [
            AttemptStarted(attempt=number, host="h", observed="0" * 64, resume=resume if number == 2 else None)
            for number in (1, 2)
        ]
        places: list[AnyEvent] = [Observation(rank=0, after=after) for after in (0, after)] if observed else []
        return _history([began[0], *places[:1], *events[:cut], began[1], *places[1:], *events[cut if after else 0 :]])

    comparison = _compared(side(changed), _events(0))
    first = comparison.first()
    assert (first.step if first is not None else None) == judged
    assert comparison.unrestored_generators() == (("torch",) if judged is None else ())
    assert any("4, 6" in line for line in gaps.differing_generators(comparison)) == (judged is None)
    # A step that draws from them shows it. The other side may be the resumed one.
    drawn = _compared(side(changed, loss={3: "x"}), _events(0)).first()
    assert drawn is not None and drawn.quantity == ("loss" if 2 not in changed else "generator torch")
    uninterrupted = _history([Observation(rank=0, after=0), *_events(0)] if observed else _events(0))
    first = compare_histories(uninterrupted, side(changed)).first()
    assert (first.step if first is not None else None) == judged


def test_a_resumed_side_is_compared_by_the_values_that_it_has() -> None:
    """The first step of its second attempt may lack values. No step after a guessed place is judged."""
    first: AnyEvent = Observation(rank=0, after=0)
    began = AttemptStarted(attempt=2, host="h", observed="0" * 64)
    events = _events(0)

    def resumed(event: AnyEvent, *, guessed: bool) -> History:
        rest = [later for later in events if getattr(later, "step", 0) > 3]
        second = [began, Observation(rank=0, after=2, guessed=guessed), event, *rest]
        return _history([first, *events[: events.index(rest[0])], *second])

    step = next(event for event in events if isinstance(event, Step) and event.step == 3)
    part = msgspec.structs.replace(step, quantities={"loss": step.quantities["loss"]})
    original = _history([first, *events])
    assert compare_histories(original, resumed(part, guessed=False)).first() is None
    other = msgspec.structs.replace(step, quantities={"loss": "x"})
    judged = compare_histories(original, resumed(other, guessed=False)).first()
    assert judged is not None and (judged.step, judged.quantity) == (3, "loss")
    unjudged = compare_histories(original, resumed(other, guessed=True))
    assert unjudged.first() is None and gaps.unplaced(unjudged)


def test_the_lowest_step_comes_first_whichever_rank_is_seen_first() -> None:
    original = _history(_events(0), _events(1))
    comparison = Comparison(original)
    for event in _events(0, loss={5: "x"}):
        comparison.feed("0", event)
    assert comparison.first() is not None and not comparison.is_decided()
    for event in _events(1, loss={3: "y"}):
        comparison.feed("1", event)
    first = comparison.first()
    assert first is not None and (first.step, first.rank, first.quantity) == (3, 1, "loss")
    assert comparison.is_decided()


def test_within_a_step_the_cause_comes_before_the_effect() -> None:
    original = _history(_events(0))
    first = _compared(original, _events(0, loss={3: "x"}, batch={3: "y"})).first()
    assert first is not None and (first.quantity, first.original, first.replayed) == ("batch", "b3", "y")


def _settles_after(original: History, events: list[AnyEvent]) -> tuple[AnyEvent, Comparison]:
    """Return the event of rank 0 after which the first divergence is final."""
    comparison = Comparison(original)
    for event in events:
        comparison.feed("0", event)
        if comparison.is_decided():
            return event, comparison
    raise AssertionError("never")


def test_a_state_recorded_after_the_step_that_differs_is_waited_for_and_names_the_tensor() -> None:
    replay = _events(0, loss={4: "x"}, tensors={4: {"model.b": "other"}})
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert isinstance(last, State) and last.step == 4
    first = comparison.first()
    assert first is not None and (first.tensor, first.tensor_step, first.tensors_differ) == ("model.b", 4, 1)


def test_a_state_of_a_later_step_is_not_waited_for_but_named_if_it_comes() -> None:
    replay = _events(0, loss={3: "x"}, tensors={4: {"model.b": "other"}, 6: {"model.a": "other"}})
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert isinstance(last, Step) and last.step == 3
    for event in replay[replay.index(last) + 1 :]:
        comparison.feed("0", event)
    first = comparison.first()
    assert first is not None and (first.step, first.tensor, first.tensor_step) == (3, "model.b", 4)


def test_a_state_saved_beside_the_training_is_waited_for_and_may_differ_before() -> None:
    """The save of the checkpoint after step 4 still runs when step 5 is seen to differ."""
    replay = _events(0, loss={5: "x"}, tensors={4: {"model.b": "other"}})
    late = next(event for event in replay if isinstance(event, State) and event.step == 4)
    replay.remove(late)
    replay.insert(replay.index(next(event for event in replay if isinstance(event, State) and event.step == 6)), late)
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert last is late
    first = comparison.first()
    assert first is not None and (first.step, first.quantity) == (4, "tensor model.b")


def test_a_replay_on_fewer_ranks_waits_for_none_that_it_has_not() -> None:
    original = _history(_events(0), _events(1))
    replay = [RankStarted(rank=0, world=1, pid=1), *_events(0, loss={2: "x"})[1:]]
    last, _ = _settles_after(original, replay)
    assert isinstance(last, State) and last.step == 2


def test_how_a_divergence_goes_on_is_counted_by_steps_and_kinds() -> None:
    original = _history(_events(0), _events(1))
    changed = {"loss": {3: "x", 5: "y"}, "tensors": {4: {"model.a": "other", "model.b": "other"}}}
    comparison = _compared(original, _events(0, **changed), _events(1, loss={5: "z"}))  # type: ignore[arg-type]
    course = comparison.course()
    assert (course.compared, course.differ, course.last) == (_LAST, 3, 5)
    assert course.by == {"loss": 2, "tensor": 1}
    assert str(course) == "3 of 6 steps differ, the last of them step 5 (loss in 2, tensor in 1)"
    # A step with a difference does not count as equal.
    assert comparison.equal["steps"] == 2 * _LAST - 3


def test_state_before_the_first_step_is_the_first_of_all() -> None:
    first = _compared(_history(_events(0)), _events(0, tensors={0: {"model.a": "other"}}, loss={1: "x"})).first()
    assert first is not None and (first.step, first.quantity, first.tensor) == (0, "tensor model.a", "model.a")


def test_what_the_replay_does_beyond_a_finished_original_is_a_divergence() -> None:
    first = _compared(_history(_events(0)), _events(0, last=_LAST + 2)).first()
    assert first is not None and (first.step, first.quantity, first.original) == (_LAST + 1, "step", None)
    first = _compared(_history(_events(0)), _events(0), _events(1)).first()
    assert first is not None and (first.rank, first.quantity) == (1, "step")


def test_a_quantity_that_one_side_alone_recorded_differs() -> None:
    def without(name: str, event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Step) or event.step != 3:
            return event
        return msgspec.structs.replace(
            event, quantities={key: event.quantities[key] for key in {"loss", "lr"} - {name}}
        )

    whole = _events(0)
    for name, value in (("loss", "l3"), ("lr", "0x1p-10")):
        less = [without(name, event) for event in whole]
        first = _compared(_history(whole), less).first()
        assert first is not None and (first.step, first.quantity, first.original, first.replayed) == (
            3,
            name,
            value,
            None,
        )
        first = _compared(_history(less), whole).first()
        assert first is not None and (first.step, first.quantity, first.original, first.replayed) == (
            3,
            name,
            None,
            value,
        )


def test_a_rank_that_the_replay_does_not_have_is_missing() -> None:
    comparison = _compared(_history(_events(0), _events(1)), _events(0))
    assert comparison.first() is None and not comparison.state_compared()
    assert gaps.missing(comparison) == ("rank 1: steps 1-6 of the original were not replayed",)


def test_a_segment_is_what_comes_after_its_first_step_up_to_its_last() -> None:
    original = _history(_events(0))
    original.contents.update({2: "before", 4: "content"})
    segment = original.within(2, 4)
    assert (
        sorted(segment.steps[0]) == [3, 4] and sorted(segment.states[0]) == [4] and segment.contents == {4: "content"}
    )


def test_reproduced_is_only_what_was_compared_in_steps_and_state() -> None:
    ended = AttemptResult(run="r", attempt=1, outcome="finished", exit_code=0)
    losses: list[AnyEvent] = [event for event in _events(0) if not isinstance(event, State)]
    for events, outcome in ((_events(0), "reproduced"), (losses, "not comparable"), ([], "not comparable")):
        comparison = _compared(_history(events), events)
        assert comparison.first() is None and gaps.missing(comparison) == ()
        assert judgement._outcome(comparison, ended, None, [], is_whole=True)[0] == outcome


def test_state_that_only_one_rank_lacks_is_no_evidence() -> None:
    """The generators of rank 1 were never compared."""
    silent: list[AnyEvent] = [event for event in _events(1) if not isinstance(event, State)]
    comparison = _compared(_history(_events(0), _events(1)), _events(0), silent)
    assert comparison.first() is None and not comparison.state_compared()
    assert gaps.only_in_original(comparison) == ("rank 1: the replay did not record the state after steps 0, 2, 4, 6",)


def test_an_original_without_steps_is_never_exhausted() -> None:
    original = _history([State(step=0, tensors={"model.a": "a0"})], outcome="failed")
    comparison = _compared(original, _events(0))
    assert not comparison.is_exhausted() and not comparison.state_compared()


def test_a_replay_that_stops_early_is_missing_something() -> None:
    comparison = _compared(_history(_events(0)), _events(0, last=3))
    assert comparison.first() is None
    assert gaps.missing(comparison) == ("rank 0: steps 4-6 of the original were not replayed",)
    assert gaps.only_in_original(comparison) == ("rank 0: the replay did not record the state after steps 4, 6",)
    assert not comparison.state_compared()


def test_an_original_that_was_interrupted_is_compared_as_far_as_it_goes() -> None:
    original = _history(_events(0, last=4), outcome="interrupted")
    comparison = Comparison(original)
    for event in _events(0):
        comparison.feed("0", event)
        if comparison.is_exhausted():
            break
    assert comparison.first() is None and gaps.missing(comparison) == ()
    assert comparison.equal["steps"] == 4


def test_a_resumed_attempt_replaces_what_came_after_its_checkpoint() -> None:
    history = History(steps={}, states={}, contents={}, facts={}, notices=[])
    for event in _events(0, last=5):
        history.add("0", event)
    history.add("launcher", CheckpointPublished(step=4, name="4-1", checkpoint="c", content="first"))
    history.add("launcher", AttemptStarted(attempt=2, host="h", observed="o", resume="0000000002-0001"))
    assert sorted(history.steps[0]) == [1, 2] and sorted(history.states[0]) == [0, 2] and not history.contents


def test_checkpoints_are_compared_by_content() -> None:
    original = _history(_events(0))
    original.contents[6] = "content"
    comparison = _compared(original, _events(0))
    comparison.feed("0", CheckpointPublished(step=6, name="6-1", checkpoint="x", content="content"))
    assert comparison.equal["checkpoints"] == 1
    comparison.feed("0", CheckpointPublished(step=6, name="6-1", checkpoint="x", content="other"))
    first = comparison.first()
    assert first is not None and (first.step, first.quantity) == (6, "checkpoint")


def test_a_checkpoint_that_only_a_stopped_attempt_made_is_listed_and_no_divergence() -> None:
    original = _history(_events(0, every=2))
    original.add("0", State(step=3, tensors={"model.a": "a3"}))
    original.contents[3] = "content"
    comparison = _compared(original, _events(0))
    assert comparison.first() is None and gaps.missing(comparison) == () and comparison.state_compared()
    assert gaps.only_in_original(comparison) == (
        "rank 0: the replay did not record the state after steps 3",
        "the replay made no checkpoints of steps 3",
    )


def test_steps_that_were_lost_with_a_machine_are_listed_and_are_no_divergence() -> None:
    kept = [event for event in _events(0) if getattr(event, "step", 9) > 4]
    started = [AttemptStarted(attempt=1, host="a", observed="0" * 64)]
    started.append(AttemptStarted(attempt=2, host="b", observed="0" * 64, resume="0000000004-0001"))
    original = History(steps={}, states={}, contents={}, facts={}, notices=[])
    for rank, event in [*(("launcher", each) for each in started), *(("0", each) for each in kept)]:
        original.add(rank, event)
    original.add("launcher", AttemptEnded(outcome="finished", exit_code=0))
    comparison = _compared(original, _events(0))
    assert comparison.first() is None and comparison.equal["steps"] == 2 and comparison.state_compared()
    assert [line.partition(" of")[0] for line in gaps.lost(comparison)] == ["rank 0: steps 1-4"]


def test_steps_that_an_attempt_from_the_beginning_replaced_are_listed_with_that_reason() -> None:
    original = History(steps={}, states={}, contents={}, facts={}, notices=[])
    for attempt, after in ((1, 0), (2, 0), (3, 4)):
        original.add("launcher", AttemptStarted(attempt=attempt, host="a", observed="0" * 64))
        original.add("0", Observation(rank=0, after=after))
        for event in _events(0, last=2 if attempt == 2 else _LAST):
            if isinstance(event, Step) and event.step > after:
                original.add("0", event)
    original.add("launcher", AttemptEnded(outcome="finished", exit_code=0))
    (line,) = gaps.lost(_compared(original, _events(0)))
    assert "steps 3-4 " in line and "from the beginning" in line and "machine" not in line
