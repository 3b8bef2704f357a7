"""Comparison of a replay with its original: the first difference by step and cause, and the list of gaps."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.attempts.results import AttemptResult
from m5ws.records.ledger import (
    COMPLETE,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointPublished,
    Observation,
    RankEnded,
    RankStarted,
    ScriptEnded,
    State,
    Step,
)
from m5ws.records.reasons import Equal, Gap
from m5ws.reproduce import gaps
from m5ws.reproduce.compare import Comparison, compare_histories
from m5ws.reproduce.outputs.output_files import OutputReport
from m5ws.reproduce.verdict import judgement
from m5ws.runs.history import History
from m5ws.wording.comparisons import label, locate

_LAST = 6
_FINISHED = AttemptResult(run="r", attempt=1, outcome="finished", exit_code=0)


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
    history = History()
    for rank, events in enumerate(ranks):
        for event in events:
            history.add(str(rank), event)
    history.add("node", AttemptEnded(outcome=outcome, exit_code=0))  # type: ignore[arg-type]
    return history


def _compared(original: History, *ranks: list[AnyEvent]) -> Comparison:
    comparison = Comparison(original)
    for rank, events in enumerate(ranks):
        for event in events:
            comparison.feed(str(rank), event)
    return comparison


def test_a_state_difference_is_named_with_the_last_equal_state() -> None:
    original = _history(_events(0), _events(1))
    changed = _compared(original, _events(0, tensors={4: {"model.a": "x"}}), _events(1)).first()
    assert changed is not None and (changed.step, changed.equal_after) == (4, 2)
    assert "equal after step 2" in locate(changed)
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


def test_all_quantities_that_differ_at_the_first_differing_step_are_listed_with_generators_first() -> None:
    changed = [
        _events(0, loss={4: "x", 5: "x"}, generator={4: "x", 6: "x"}),
        _events(1, loss={4: "x"}, batch={4: "x"}, generator={4: "x"}),
    ]
    first = _compared(_history(_events(0), _events(1)), *changed).first()
    assert first is not None and first.quantity == "batch" and first.rank == 1
    assert first.differing == ("generator torch", "batch", "loss")
    alone = _compared(_history(_events(0)), _events(0, loss={4: "x"})).first()
    assert alone is not None and alone.differing == ("loss",)


def _attempt(number: int) -> AttemptStarted:
    return AttemptStarted(attempt=number, host="h")


def _resumed(after: int, *, last: int = _LAST, **second: Any) -> History:
    """Return an observed run whose second attempt continues after a step; None of its values differ by default."""
    first = [event for event in _events(0, last=last) if getattr(event, "step", 0) <= after + 1]
    again = [event for event in _events(0, last=last, **second) if getattr(event, "step", 0) > after]
    return _history(
        [_attempt(1), Observation(rank=0, after=0), *first, _attempt(2), Observation(rank=0, after=after), *again]
    )


def _ended(history: History, weights: dict[str, str], *, unread: tuple[str, ...] = ()) -> History:
    history.add("0", ScriptEnded(rank=0, weights=weights, unread=unread))
    return history


@pytest.mark.parametrize("side", ["original", "replay"])
def test_only_the_end_of_an_unplaced_attempt_is_judged(side: str) -> None:
    for end, differs in (("1", False), ("2", True)):
        first: list[AnyEvent] = [_attempt(1), Observation(rank=0, after=0), *_events(0, last=4)]
        second: list[AnyEvent] = [_attempt(2), Observation(rank=0, unplaced=True), *_events(0, loss={1: "x", 3: "y"})]
        unplaced = _ended(_history([*first, *second]), {"model.w": "1"})
        assert sorted(unplaced.steps[0]) == [1, 2, 3, 4] and unplaced.without_place == (2,)
        whole = _ended(_history([_attempt(1), Observation(rank=0, after=0), *_events(0)]), {"model.w": end})
        sides = (unplaced, whole) if side == "original" else (whole, unplaced)
        comparison = compare_histories(*sides)
        comparison.compare_ends()
        assert (comparison.first() is not None) == differs
        assert gaps.missing(comparison) == () and comparison.equal["steps"] == 4
        assert next(gaps.doubts(comparison)) == Gap(kind="attempt without place", number=2)
    # An attempt that starts from the beginning does all steps again.
    again = _history([*first, *second, _attempt(3), Observation(rank=0, after=0), *_events(0)])
    assert again.without_place == ()


def test_ranks_with_different_places_leave_an_attempt_without_a_place() -> None:
    places: list[list[AnyEvent]] = [[_attempt(2), Observation(rank=0, after=2)], [Observation(rank=1, after=3)]]
    history = _history(*([*_events(rank), *place] for rank, place in enumerate(places)))
    assert history.without_place == (2,) and history.begun == []


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["finished", "unsaved", "failed", "interrupted"]))
def test_the_number_of_steps_is_compared_both_ways_if_both_sides_ended_by_themselves(
    original: int, replay: int, outcome: str
) -> None:
    comparison = compare_histories(
        _history(_events(0, last=original)), _history(_events(0, last=replay), outcome=outcome)
    )
    comparison.compare_ends()
    first = comparison.first()
    has_ended = outcome in COMPLETE
    assert (first is not None) == (replay > original or (has_ended and replay < original))
    assert first is None or (first.step, first.quantity) == (min(original, replay) + 1, "number of steps")
    assert first is None or (first.original, (first.replayed or "").split()[0]) == (
        str(original),
        str(replay if replay < original else original + 1),
    )


_WEIGHTS = st.dictionaries(
    st.sampled_from(["model.a", "model.b", "optimizer.parameter.group0.0"]), st.sampled_from("12")
)


@given(_WEIGHTS, _WEIGHTS, st.booleans(), st.sampled_from([(), ("SGD, 2 tensors, 9 elements",)]))
def test_final_weights_are_compared_by_name_and_unmatched_names_are_listed(
    ours: dict[str, str], theirs: dict[str, str], resumed: bool, unread: tuple[str, ...]
) -> None:
    original = _ended(_resumed(3) if resumed else _history([_attempt(1), *_events(0)]), ours, unread=unread)
    comparison = compare_histories(original, _ended(_history([_attempt(1), *_events(0)]), theirs))
    comparison.compare_ends()
    first = comparison.first()
    # A resumed attempt may have given a name to other weights, unless both sides have the same names.
    judged = ours.keys() & theirs.keys() if not resumed or ours.keys() == theirs.keys() else set()
    assert (first is not None) == any(ours[name] != theirs[name] for name in judged)
    assert set(comparison.unlike_ends()) == {*unread, *(ours.keys() ^ theirs.keys())}
    assert any(gaps.doubts(comparison)) == bool(comparison.unlike_ends())


def test_only_a_segment_with_the_last_step_has_final_weights() -> None:
    original = _ended(_history(_events(0)), {"model.a": "1"})
    assert original.within(0, 4).weights == {} and original.within(2, _LAST).weights == {0: {"model.a": "1"}}


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({"loss": {4: "x"}}, ("loss", 4)),
        ({"batch": {4: "x"}}, ("batch", 4)),
        ({"tensors": {4: {"model.a": "x"}}}, ("tensor model.a", 4)),
        ({"generator": {4: "x"}}, None),
    ],
)
def test_a_resumed_observed_run_is_judged_by_everything_except_generators(
    changed: dict[str, Any], judged: tuple[str, int] | None
) -> None:
    whole = _ended(_history([_attempt(1), Observation(rank=0, after=0), *_events(0)]), {})
    resumed = _ended(_resumed(2, **changed), {})
    for comparison in (compare_histories(resumed, whole), compare_histories(whole, resumed)):
        first = comparison.first()
        assert (None if first is None else (label(first), first.step)) == judged
        gap = Gap(kind="generators not restored", name="torch", ranks="rank 0", steps="4")
        assert gaps.unrestored(comparison) == ((gap,) if judged is None else ())
        outcome, why = judgement.judge_equal(comparison, _FINISHED, OutputReport())
        assert judged is not None or (outcome == "sampled" and isinstance(why, Equal) and why.doubt == gap)


@pytest.mark.parametrize("name", ["loss", "loss2", "batch", "output", "lr", "grad_norm"])
@pytest.mark.parametrize("passes", [1, 2])
def test_pass_values_of_a_resumed_run_are_compared_if_the_pass_counts_are_equal(name: str, passes: int) -> None:
    def step(value: str, passes: int) -> Step:
        batch, digests = (value if name == "batch" else "b"), {"output": value if name == "output" else "o"}
        quantities = dict.fromkeys({"loss", "loss2", "lr", "grad_norm"} - {name}, "q")
        quantities |= {} if name in ("batch", "output") else {name: value}
        return Step(step=3, quantities=quantities, batch=batch, digests=digests, passes=passes)

    def run(resumed: bool, third: Step) -> History:
        begin: list[AnyEvent] = [_attempt(1), Observation(rank=0, after=0), *_events(0, last=2)]
        again: list[AnyEvent] = [_attempt(2), Observation(rank=0, after=2)] if resumed else []
        return _history([*begin, *again, third])

    is_judged = passes == 1 or name in ("lr", "grad_norm")
    comparison = compare_histories(run(True, step("x", passes)), run(False, step("y", 1)))
    assert (comparison.first() is not None) == is_judged
    assert compare_histories(run(False, step("x", passes)), run(False, step("y", 1))).first() is not None


_LACKING = "lacking"
_ORDERS = {"batch": 0, "loss": 2, "lr": 4, "generator torch": 5, "tensor model.a": 6}
"""Quantities of a step, and then of the state after it, in causal order."""
_PLACES = [
    (step, quantity, rank)
    for step in range(_LAST + 1)
    for quantity in _ORDERS
    for rank in (0, 1)
    if (step % 2 == 0 if " " in quantity else step > 0) and not (rank and quantity.startswith("tensor"))
]


def _changed(rank: int, changes: dict[tuple[int, str, int], str]) -> list[AnyEvent]:
    """Return the events of a rank with other values at some places; a quantity may be lacking."""
    events: list[AnyEvent] = []
    for event in _events(rank):
        if isinstance(event, Step):
            own = {quantity: new for (step, quantity, at), new in changes.items() if (step, at) == (event.step, rank)}
            values = event.quantities | {name: own[name] for name in ("loss", "lr") if name in own}
            event = msgspec.structs.replace(  # noqa: PLW2901
                event,
                quantities={name: value for name, value in values.items() if value != _LACKING},
                batch=own.get("batch", event.batch),
            )
        elif isinstance(event, State):
            own = {quantity: new for (step, quantity, at), new in changes.items() if (step, at) == (event.step, rank)}
            named = {"model.a": own["tensor model.a"]} if "tensor model.a" in own else {}
            drawn = {"torch": own["generator torch"]} if "generator torch" in own else {}
            event = msgspec.structs.replace(  # noqa: PLW2901
                event, tensors=event.tensors | named, generators=event.generators | drawn
            )
        events.append(event)
    return events


@given(
    st.dictionaries(st.sampled_from(_PLACES), st.just("other"), max_size=4),
    st.sampled_from(["", "loss", "lr"]),
    st.booleans(),
    st.booleans(),
)
def test_the_first_difference_has_the_lowest_step_first_cause_and_lowest_rank(
    changes: dict[tuple[int, str, int], str], lacking: str, is_replay: bool, is_reversed: bool
) -> None:
    changes |= {(3, lacking, 1): _LACKING} if lacking else {}
    whole, other = [_events(0), _events(1)], [_changed(rank, changes) for rank in (0, 1)]
    comparison = Comparison(_history(*(whole if is_replay else other)))
    for rank in (1, 0) if is_reversed else (0, 1):
        for event in (other if is_replay else whole)[rank]:
            comparison.feed(str(rank), event)
    places = sorted((step, _ORDERS[quantity], rank, quantity) for step, quantity, rank in changes)
    first = comparison.first()
    assert (None if first is None else (first.step, first.rank, label(first))) == (
        (places[0][0], places[0][2], places[0][3]) if places else None
    )
    assert comparison.is_decided() == bool(places)
    in_steps = {(step, rank) for step, quantity, rank in changes if " " not in quantity}
    assert comparison.equal["steps"] == 2 * _LAST - len(in_steps)
    assert comparison.count_compared() == _LAST


def _settles_after(original: History, events: list[AnyEvent]) -> tuple[AnyEvent, Comparison]:
    """Return the event of rank 0 after which the first divergence is final."""
    comparison = Comparison(original)
    for event in events:
        comparison.feed("0", event)
        if comparison.is_decided():
            return event, comparison
    raise AssertionError("never")


def test_a_comparison_waits_for_the_state_of_a_differing_step() -> None:
    replay = _events(0, loss={4: "x"}, tensors={4: {"model.b": "other"}})
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert isinstance(last, State) and last.step == 4
    first = comparison.first()
    assert first is not None and (first.tensor, first.tensor_step, first.tensors_differ) == ("model.b", 4, 1)


def test_a_comparison_does_not_wait_for_the_state_of_a_later_step() -> None:
    replay = _events(0, loss={3: "x"}, tensors={4: {"model.b": "other"}, 6: {"model.a": "other"}})
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert isinstance(last, Step) and last.step == 3
    for event in replay[replay.index(last) + 1 :]:
        comparison.feed("0", event)
    first = comparison.first()
    assert first is not None and (first.step, first.tensor, first.tensor_step) == (3, "model.b", 4)


def test_a_comparison_waits_for_a_late_state_that_may_differ_earlier() -> None:
    """The save of the checkpoint after step 4 still runs when step 5 is seen to differ."""
    replay = _events(0, loss={5: "x"}, tensors={4: {"model.b": "other"}})
    late = next(event for event in replay if isinstance(event, State) and event.step == 4)
    replay.remove(late)
    replay.insert(replay.index(next(event for event in replay if isinstance(event, State) and event.step == 6)), late)
    last, comparison = _settles_after(_history(_events(0)), replay)
    assert last is late
    first = comparison.first()
    assert first is not None and (first.step, label(first)) == (4, "tensor model.b")


def test_a_comparison_does_not_wait_for_ranks_that_the_replay_lacks() -> None:
    original = _history(_events(0), _events(1))
    replay = [RankStarted(rank=0, world=1, pid=1), *_events(0, loss={2: "x"})[1:]]
    last, _ = _settles_after(original, replay)
    assert isinstance(last, State) and last.step == 2


def test_steps_of_a_rank_that_the_replay_lacks_are_missing() -> None:
    comparison = _compared(_history(_events(0), _events(1)), _events(0))
    assert comparison.first() is None and not comparison.state_compared()
    assert gaps.missing(comparison) == (Gap(kind="missing steps", ranks="rank 1", steps="1-6"),)


def test_a_segment_excludes_its_first_step_and_includes_its_last_step() -> None:
    original = _history(_events(0))
    original.contents.update({2: "before", 4: "content"})
    segment = original.within(2, 4)
    assert (
        sorted(segment.steps[0]) == [3, 4] and sorted(segment.states[0]) == [4] and segment.contents == {4: "content"}
    )


def test_only_a_replay_with_equal_steps_and_states_is_reproduced() -> None:
    losses: list[AnyEvent] = [event for event in _events(0) if not isinstance(event, State)]
    for events, outcome in ((_events(0), "reproduced"), (losses, "not comparable"), ([], "not comparable")):
        comparison = _compared(_history(events), events)
        assert comparison.first() is None and gaps.missing(comparison) == ()
        assert judgement.judge_equal(comparison, _FINISHED, OutputReport())[0] == outcome


def test_a_state_missing_on_one_rank_is_no_evidence() -> None:
    """The generators of rank 1 were never compared."""
    silent: list[AnyEvent] = [event for event in _events(1) if not isinstance(event, State)]
    comparison = _compared(_history(_events(0), _events(1)), _events(0), silent)
    assert comparison.first() is None and not comparison.state_compared()
    assert gaps.only_in_original(comparison) == (
        Gap(kind="states of the original", ranks="rank 1", steps="0, 2, 4, 6"),
    )


def test_an_original_without_steps_is_never_exhausted() -> None:
    original = _history([State(step=0, tensors={"model.a": "a0"})], outcome="failed")
    comparison = _compared(original, _events(0))
    assert not comparison.is_exhausted() and not comparison.state_compared()


def test_a_replay_that_stops_early_has_missing_steps() -> None:
    comparison = _compared(_history(_events(0)), _events(0, last=3))
    assert comparison.first() is None
    assert gaps.missing(comparison) == (Gap(kind="missing steps", ranks="rank 0", steps="4-6"),)
    assert gaps.only_in_original(comparison) == (Gap(kind="states of the original", ranks="rank 0", steps="4, 6"),)
    assert not comparison.state_compared()


def test_an_interrupted_original_is_compared_up_to_its_last_step() -> None:
    original = _history(_events(0, last=4), outcome="interrupted")
    comparison = Comparison(original)
    for event in _events(0):
        comparison.feed("0", event)
        if comparison.is_exhausted():
            break
    assert comparison.first() is None and gaps.missing(comparison) == ()
    assert comparison.equal["steps"] == 4


def test_a_resumed_attempt_replaces_the_steps_after_its_checkpoint() -> None:
    history = History()
    for event in _events(0, last=5):
        history.add("0", event)
    history.add("node", CheckpointPublished(step=4, name="4-1", checkpoint="c", content="first"))
    history.add("node", AttemptStarted(attempt=2, host="h", resume="0000000002-0001"))
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
        Gap(kind="states of the original", ranks="rank 0", steps="3"),
        Gap(kind="checkpoints of the original", steps="3"),
    )


def test_steps_that_were_lost_with_a_machine_are_listed_and_are_no_divergence() -> None:
    kept = [event for event in _events(0) if getattr(event, "step", 9) > 4]
    started = [AttemptStarted(attempt=1, host="a")]
    started.append(AttemptStarted(attempt=2, host="b", resume="0000000004-0001"))
    original = History()
    for rank, event in [*(("node", each) for each in started), *(("0", each) for each in kept)]:
        original.add(rank, event)
    original.add("node", AttemptEnded(outcome="finished", exit_code=0))
    comparison = _compared(original, _events(0))
    assert comparison.first() is None and comparison.equal["steps"] == 2 and comparison.state_compared()
    assert gaps.lost(comparison) == (Gap(kind="lost steps", ranks="rank 0", steps="1-4"),)
