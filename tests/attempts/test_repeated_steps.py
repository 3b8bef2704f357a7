"""Steps that a resumed attempt repeats: the first difference of each rank, with generators first."""

import pytest

from m5ws.attempts.repeated_steps import Difference, RepeatedSteps
from m5ws.records.ledger import State, Step
from m5ws.repository.repository import Repository
from tests.support.records import planted
from tests.support.stores.memory_store import MemoryStore

_RUN = "a" * 12


def _step(step: int, loss: float) -> Step:
    return Step(step=step, quantities={"loss": loss.hex(), "lr": (0.1).hex()})


def _state(step: int, generator: int, tensor: int = 0) -> State:
    tensors = {f"model.{name}": f"{tensor:x}" for name in "abcde"}
    return State(step=step, tensors=tensors, generators={"torch": f"{generator:064x}"})


@pytest.fixture
def steps() -> RepeatedSteps:
    """The comparison of a second attempt. The first attempt has three ranks, and five steps with states."""
    repo = Repository.create(MemoryStore())
    planted.run(repo, _RUN)
    planted.begin(repo, _RUN)
    for rank in range(3):
        for step in range(1, 6):
            planted.append(repo, _RUN, 1, str(rank), _step(step, 1.0), _state(step, 0))
    return RepeatedSteps(repo, _RUN, 2)


def test_equal_steps_have_no_difference(steps: RepeatedSteps) -> None:
    for rank in range(3):
        steps.compare(str(rank), _step(3, 1.0))
        steps.compare(str(rank), _state(3, 0))
    assert steps.take() == []


def test_the_first_difference_of_each_rank_is_returned_once(steps: RepeatedSteps) -> None:
    for step in (3, 4, 5):
        steps.compare("0", _step(step, 2.0))
        steps.compare("1", _step(step, 1.0 if step == 3 else 2.0))
        steps.compare("2", _step(step, 2.0))
    first, second = steps.take()
    assert first == Difference(3, (0, 2), ("loss",)) and second == Difference(4, (1,), ("loss",))
    assert str(first) == "the resume was not exact: step 3 on ranks 0, 2: loss differs from before"
    assert steps.take() == []


def test_generators_come_before_all_other_differences_of_the_step(steps: RepeatedSteps) -> None:
    steps.compare("0", _step(3, 2.0))
    steps.compare("0", _state(3, 1, tensor=1))
    (difference,) = steps.take()
    names = ("generator torch", "loss", "tensor model.a", "tensor model.b", "tensor model.c", "2 more tensors")
    assert difference == Difference(3, (0,), names)
    assert str(difference).endswith("tensor model.c and 2 more tensors differ from before")


def test_a_state_that_arrives_after_the_next_step_is_the_first_difference(steps: RepeatedSteps) -> None:
    steps.compare("0", _step(3, 1.0))
    steps.compare("0", _step(4, 2.0))
    steps.compare("0", _state(3, 1))
    steps.compare("0", _state(4, 1))
    assert [difference.step for difference in steps.take()] == [3, 4]
    steps.compare("0", _state(4, 1))
    assert steps.take() == []
