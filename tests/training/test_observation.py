"""Steps of scripts that know nothing of m5ws."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from m5ws.records import exact
from m5ws.records.ledger import Notice, Observation, RankEnded, State, Step

SCRIPT = str(Path(__file__).parent / "scripts" / "observed.py")
VALUES = {"grad_norm", "loss", "lr"}


@pytest.fixture
def observed(runner: Any) -> Any:
    runner.observe = True
    return runner


def steps(attempt: Any, rank: int = 0) -> list[Step]:
    return [event for event in attempt.of(Step, rank) if isinstance(event, Step)]


def states(attempt: Any, rank: int = 0) -> dict[int, State]:
    return {event.step: event for event in attempt.of(State, rank) if isinstance(event, State)}


def parts(attempt: Any) -> dict[str, str]:
    found = [event.parts for event in attempt.of(Observation) if isinstance(event, Observation)]
    return {label: text for each in found for label, text in each.items()}


def evidence(attempt: Any, rank: int = 0) -> list[object]:
    """Return all values that are compared."""
    of_steps = [(step.step, step.batch, step.digests, step.quantities) for step in steps(attempt, rank)]
    return [*of_steps, *((step, state.tensors, state.generators) for step, state in states(attempt, rank).items())]


@pytest.mark.parametrize(
    ("kind", "count", "named"),
    [
        ("plain", 3, {"model", "optimizer"}),
        ("module_loss", 3, {"model", "optimizer"}),
        ("keywords", 3, {"model", "optimizer"}),
        ("in_evaluation", 3, {"model", "model2", "optimizer"}),
        ("closure", 3, {"model", "optimizer"}),
        ("restored", 3, {"model", "optimizer"}),
        ("peculiar", 3, {"model", "optimizer"}),
        ("nested", 3, {"model", "optimizer"}),
        ("in_threads", 3, {"model", "optimizer"}),
        ("scaler", 2, {"model", "optimizer"}),
        ("fused_scaler", 2, {"model", "optimizer"}),
        ("compiled_function", 3, {"optimizer"}),
        ("traced", 3, {"model", "optimizer"}),
        ("recomputed", 3, {"model", "optimizer"}),
        ("raw", 3, {"optimizer"}),
        ("with_workers", 3, {"model", "optimizer"}),
    ],
)
def test_each_optimizer_update_is_recorded_as_a_step_with_values(
    observed: Any, kind: str, count: int, named: set[str]
) -> None:
    attempt = observed(SCRIPT, kind, "3")
    assert attempt.status == 0, attempt.log()
    assert [step.step for step in steps(attempt)] == list(range(1, count + 1))
    assert all(step.quantities.keys() == VALUES for step in steps(attempt))
    assert all((step.batch is None) == (kind in ("raw", "compiled_function")) for step in steps(attempt))
    assert set(parts(attempt)) == named
    assert list(states(attempt)) == [0, 1, 2]
    assert attempt.notices("limit") == []


def test_equal_trainings_have_equal_evidence_and_another_rate_differs_first_in_lr(observed: Any) -> None:
    one, same, other = (observed(SCRIPT, "plain", "5", rate) for rate in ("1e-2", "1e-2", "2e-2"))
    assert evidence(one) == evidence(same)
    first, changed = steps(one)[0], steps(other)[0]
    assert (first.batch, first.digests["output"]) == (changed.batch, changed.digests["output"])
    assert first.quantities["grad_norm"] == changed.quantities["grad_norm"]
    assert exact.decode(changed.quantities["lr"]) == 2e-2
    assert steps(one)[1].digests["output"] != steps(other)[1].digests["output"]
    assert states(one)[0] == states(other)[0] or states(one)[0].tensors == states(other)[0].tensors
    assert states(one)[1].tensors["model.first.weight"] != states(other)[1].tensors["model.first.weight"]


def test_the_forms_of_a_model_have_equal_evidence(observed: Any) -> None:
    eager, wrapped, in_place = (
        observed(SCRIPT, *words) for words in (("keywords", "3"), ("compiled", "3"), ("compiled", "3", "in place"))
    )
    assert [step.digests for step in steps(eager)] == [step.digests for step in steps(wrapped)]
    assert evidence(wrapped) == evidence(in_place)


def test_evaluations_without_gradients_are_no_evidence(observed: Any) -> None:
    """Their extent and their values may depend on the clock."""
    one, other = (observed(SCRIPT, "evaluated", "3", count) for count in ("0", "5"))
    assert len(steps(one)) == 3 and evidence(one) == evidence(other)


def test_a_signal_at_any_event_leaves_states_with_correct_step_numbers(observed: Any) -> None:
    """The first events are of the first step, and each later step and each state is one."""
    expected = {state.step: state.tensors for state in states(observed(SCRIPT, "stopped", "6")).values()}
    for event in range(1, 13):
        attempt = observed(SCRIPT, "stopped", "6", str(event))
        assert attempt.status != 0
        assert all(state.tensors == expected[state.step] for state in states(attempt).values()), event


def test_a_step_with_unread_values_is_not_recorded(observed: Any) -> None:
    attempt = observed(SCRIPT, "stopped_in_values", "5")
    assert attempt.status != 0 and [step.step for step in steps(attempt)] == [1, 2]
    assert [set(step.quantities) for step in steps(attempt)] == [VALUES] * 2


def test_updates_are_counted_from_1_after_a_state_reset(observed: Any) -> None:
    assert [step.updates["optimizer"] for step in steps(observed(SCRIPT, "reset", "5"))] == [1, 2, 1, 2, 1]


def test_a_step_has_the_values_of_all_its_optimizers(observed: Any) -> None:
    attempt = observed(SCRIPT, "two", "3")
    assert [set(step.quantities) for step in steps(attempt)] == [VALUES | {"grad_norm2", "lr2"}] * 3
    assert [step.updates for step in steps(attempt)] == [{"optimizer2": number} for number in (1, 2, 3)]
    assert set(parts(attempt)) == {"model", "optimizer", "optimizer2"}
    assert "optimizer2.last.weight.exp_avg" in states(attempt)[1].tensors


def test_alternating_optimizers_make_separate_steps_and_model_outputs_are_no_batch(observed: Any) -> None:
    attempt = observed(SCRIPT, "adversaries", "3")
    assert [set(step.quantities) for step in steps(attempt)] == 3 * [VALUES, {"grad_norm2", "loss2", "lr2"}]
    assert set(parts(attempt)) == {"model", "model2", "optimizer", "optimizer2"}
    assert [step.batch is None for step in steps(attempt)] == 3 * [False, True]
    assert "optimizer2.first.weight.exp_avg" in states(attempt)[2].tensors


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_rank_is_observed_separately(observed: Any, kind: str) -> None:
    one, same = (observed(SCRIPT, "distributed", "3", kind, ranks=2) for _ in range(2))
    assert one.status == 0, one.log()
    for rank in (0, 1):
        assert len(steps(one, rank)) == 3 and evidence(one, rank) == evidence(same, rank)
        assert "model.first.weight" in states(one, rank)[1].tensors
    weights = [states(one, rank)[2].tensors["model.first.weight"] for rank in (0, 1)]
    assert (weights[0] == weights[1]) == (kind == "ddp")


def test_settings_without_a_stable_text_are_equal_in_equal_trainings(observed: Any) -> None:
    one, same = (observed(SCRIPT, "settings", "2") for _ in range(2))
    assert one.status == 0, one.log()
    assert evidence(one) == evidence(same)


def test_a_step_that_only_creates_the_optimizers_state_does_not_count(observed: Any) -> None:
    fresh, created = (observed(SCRIPT, "restored", "3", state) for state in ("fresh", "created"))
    assert [step.step for step in steps(created)] == [1, 2, 3]
    assert [msgspec.structs.replace(step, time_s=0, seconds=0) for step in steps(created)] == [
        msgspec.structs.replace(step, time_s=0, seconds=0) for step in steps(fresh)
    ]
    assert [any("momentum" in name for name in states(attempt)[0].tensors) for attempt in (fresh, created)] == [
        False,
        True,
    ]


def test_reused_memory_of_outputs_does_not_change_the_evidence(observed: Any) -> None:
    freed, kept = (observed(SCRIPT, "freed", "2", word) for word in ("", "kept"))
    assert evidence(freed) == evidence(kept)


def test_optimizers_of_single_parameters_make_one_common_step(observed: Any) -> None:
    one, same = (observed(SCRIPT, "in_backward", "3") for _ in range(2))
    assert len(steps(one)) == 3 and evidence(one) == evidence(same)
    assert len(steps(one)[0].quantities) < 40
    assert sum(name.endswith("exp_avg") for name in states(one)[2].tensors) == 20


@pytest.mark.parametrize("kind", ["resuming", "compiled_step", "counted"])
def test_observation_changes_no_bits(observed: Any, kind: str) -> None:
    seen = observed(SCRIPT, kind, "4")
    observed.observe = False
    unseen = observed(SCRIPT, kind, "4")
    stored = [(attempt.directory / "work" / "out" / "checkpoint.pt").read_bytes() for attempt in (seen, unseen)]
    assert stored[0] == stored[1]
    # The hooks of an optimizer are traced with its compiled step, so they do nothing.
    assert unseen.of(Step) == [] and bool(seen.of(Step)) == (kind != "compiled_step")


@pytest.mark.parametrize(("arguments", "ended"), [(("plain", "0"), [None]), (("unknown", "1"), ["KeyError"])])
def test_a_script_without_training_runs_unchanged_and_records_no_steps(
    observed: Any, arguments: tuple[str, ...], ended: list[Any]
) -> None:
    attempt = observed(SCRIPT, *arguments)
    errors = [event.failure and event.failure.type for event in attempt.of(RankEnded)]
    assert errors == ended and steps(attempt) == [] and attempt.of(Notice) == []


@pytest.mark.parametrize("stage", [pytest.param(2, marks=pytest.mark.soak), 3])
def test_an_engine_of_deepspeed_is_observed_by_its_inner_optimizer(observed: Any, operator: Any, stage: int) -> None:
    script = str(Path(SCRIPT).with_name("observed_deepspeed.py"))
    one, same = (observed(script, str(stage), "3", ranks=2) for _ in range(2))
    assert one.status == 0, one.log()
    for rank in (0, 1):
        assert len(steps(one, rank)) == 3 and evidence(one, rank) == evidence(same, rank)
        assert all(step.quantities.keys() == {"loss", "lr"} for step in steps(one, rank))
        assert list(states(one, rank)) == [0, 1, 2]
    assert set(parts(one)) == {"model", "optimizer"}
    assert {"model.first.weight", "master.first.weight", "optimizer.first.weight.exp_avg"} <= states(one)[
        1
    ].tensors.keys()
