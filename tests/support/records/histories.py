"""Comparisons of the records of two runs."""

from m5ws.runs.history import History


def assert_equal(one: History, two: History) -> None:
    """Assert that `two` recorded the same steps, states and contents as `one`, bit for bit.

    A stopped run may have checkpoints that the other run lacks.
    """
    for rank, steps in one.steps.items():
        assert sorted(steps) == sorted(two.steps[rank]), rank
    for rank, states in one.states.items():
        assert sorted(states) == sorted(two.states[rank]), rank
    assert_alike(one, two)
    assert {step: two.contents.get(step) for step in one.contents} == one.contents


def assert_alike(one: History, two: History) -> None:
    """Assert that common records are equal; either run may lack records of the other run."""
    for rank, steps in one.steps.items():
        for number in steps.keys() & two.steps.get(rank, {}).keys():
            ours, theirs = steps[number], two.steps[rank][number]
            assert (ours.quantities, ours.batch) == (theirs.quantities, theirs.batch), (rank, number)
    for rank, states in one.states.items():
        for number in states.keys() & two.states.get(rank, {}).keys():
            state, other_state = states[number], two.states[rank][number]
            assert (state.tensors, state.generators) == (other_state.tensors, other_state.generators), (rank, number)
    for number in one.contents.keys() & two.contents.keys():
        assert one.contents[number] == two.contents[number], number
