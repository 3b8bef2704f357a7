"""The vote of stacks: a rank that differs is named at each rank of each world, and a tie names none."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m5ws.records.stacks import Frame, RankStack
from m5ws.supervision import vote

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed"
LAUNCH = Frame(file="/opt/m5ws-own/site-packages/m5ws/training/rank.py", line=200, function="_run_script")
WAITS = (
    Frame(file=f"{TORCH}/distributed_c10d.py", line=3000, function="all_reduce"),
    Frame(file=f"{TORCH}/c10d_logger.py", line=80, function="wrapper"),
    Frame(file="train.py", line=40, function="main"),
    LAUNCH,
)
ELSEWHERE = (WAITS[0], Frame(file="train.py", line=55, function="evaluate"), LAUNCH)
LOADS = (
    Frame(file="/usr/lib/python3.11/selectors.py", line=415, function="select"),
    Frame(file="loader.py", line=7, function="read"),
    Frame(file="train.py", line=30, function="main"),
    LAUNCH,
)
IN_FORWARD = (
    Frame(file="model.py", line=9, function="forward"),
    Frame(file=f"{TORCH}/fsdp/fully_sharded_data_parallel.py", line=850, function="forward"),
    *WAITS[2:],
)
BACKWARD = (
    Frame(file="/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line=8, function="_engine_run_backward"),
    *WAITS[2:],
)
JOINS = Frame(file="/usr/lib/python3.11/threading.py", line=1, function="_shutdown")
WORLDS = [(world, culprit) for world in (2, 3, 4, 16) for culprit in range(world)]


def _stack(
    rank: int,
    frames: tuple[Frame, ...] = WAITS,
    *,
    step: int = 9,
    state: str = "S",
    problem: str | None = None,
    phase: str = "step",
    is_late: bool = True,
) -> RankStack:
    return RankStack(
        rank=rank, host=f"n{rank // 8}", pid=100 + rank, step=step, phase=phase, waited_s=61.0, limit_s=60.0,
        is_late=is_late, state=state, frames=frames, problem=problem,
    )  # fmt: skip


@pytest.mark.parametrize(("world", "culprit"), WORLDS)
@pytest.mark.parametrize(("state", "frames", "rule"), [("gone", (), "process"), ("S", (JOINS,), "collective")])
def test_a_rank_after_its_script_is_named_if_the_others_wait_in_a_collective(
    world: int, culprit: int, state: str, frames: tuple[Frame, ...], rule: str
) -> None:
    stacks = [_stack(rank) for rank in range(world)]
    stacks[culprit] = _stack(culprit, frames, state=state, phase="exit", is_late=False)
    found = vote.vote(stacks, world)
    assert (found.ranks, found.rule) == ((culprit,), rule)


@pytest.mark.parametrize(("world", "culprit"), WORLDS)
def test_a_process_that_does_not_end_is_named_and_ended_processes_are_not(world: int, culprit: int) -> None:
    stacks = [_stack(rank, (), state="gone", phase="exit", is_late=False) for rank in range(world)]
    stacks[culprit] = _stack(culprit, (JOINS,), phase="exit")
    found = vote.vote(stacks, world)
    assert (found.ranks, found.rule) == ((culprit,), "exit")
    stacks[culprit] = _stack(culprit, LOADS, phase="end")
    assert vote.vote(stacks, world).ranks == (() if world > 1 else (0,))


@pytest.mark.parametrize(("world", "culprit"), WORLDS)
@pytest.mark.parametrize(
    ("frames", "state", "rule", "place"),
    [
        (WAITS, "T", "process", "train.py:40"),
        (LOADS, "S", "collective", "loader.py:7"),
        (IN_FORWARD, "R", "collective", "model.py:9"),
        ((), "gone", "process", None),
    ],
)
@pytest.mark.parametrize("others", [WAITS, BACKWARD])
def test_a_rank_that_waits_in_no_collective_is_named(
    world: int,
    culprit: int,
    frames: tuple[Frame, ...],
    state: str,
    rule: str,
    place: str | None,
    others: tuple[Frame, ...],
) -> None:
    stacks = [_stack(rank, others) for rank in range(world)]
    stacks[culprit] = _stack(culprit, frames, state=state)
    found = vote.vote(stacks, len(stacks))
    assert (found.ranks, found.rule) == ((culprit,), rule)
    assert vote.describe_place(stacks[culprit]) == place


@pytest.mark.parametrize(("world", "culprit"), WORLDS)
def test_a_rank_in_another_collective_is_named_unless_two_ranks_are_a_tie(world: int, culprit: int) -> None:
    stacks = [_stack(rank, ELSEWHERE if rank == culprit else WAITS) for rank in range(world)]
    found = vote.vote(stacks, len(stacks))
    assert found.ranks == (() if world == 2 else (culprit,))
    sentence = vote.describe_all(stacks, found)
    assert f"rank {culprit} on n{culprit // 8}, waiting in all_reduce at train.py:55 in evaluate" in sentence
    assert ("because of an unknown rank" in sentence) == (world == 2)


@pytest.mark.parametrize(("world", "culprit"), WORLDS)
def test_without_stacks_a_rank_with_fewer_steps_is_named(world: int, culprit: int) -> None:
    problem = "py-spy is not installed"
    stacks = [_stack(rank, (), step=8 if rank == culprit else 9, problem=problem) for rank in range(world)]
    found = vote.vote(stacks, len(stacks))
    assert (found.ranks, found.rule) == ((culprit,), "steps")
    assert f"rank {culprit} on n{culprit // 8}, no stack: {problem}" in vote.describe_all(stacks, found)


def test_a_rank_with_fewer_steps_that_waits_in_a_collective_is_not_named() -> None:
    assert vote.vote([_stack(0, step=8), _stack(1, ELSEWHERE)], 2).ranks == ()


@pytest.mark.parametrize("frames", [WAITS, LOADS, ()])
def test_a_rank_that_is_alone_is_named(frames: tuple[Frame, ...]) -> None:
    assert vote.vote([_stack(0, frames)], 1).ranks == (0,)


def test_no_group_is_named_if_the_stack_of_a_rank_is_missing() -> None:
    stacks = [_stack(0, ELSEWHERE), *(_stack(rank) for rank in range(1, 4))]
    assert vote.vote(stacks, 4).ranks == (0,)
    assert vote.vote(stacks, 5).ranks == vote.vote(stacks[:1], 5).ranks == ()


PLACES = st.sampled_from([WAITS, ELSEWHERE, BACKWARD])


@given(st.lists(PLACES, min_size=2, max_size=16))
def test_only_the_one_smallest_group_below_half_is_named(places: list[tuple[Frame, ...]]) -> None:
    found = vote.vote([_stack(rank, frames) for rank, frames in enumerate(places)], len(places))
    groups = sorted(
        [rank for rank, other in enumerate(places) if other == frames] for frames in (WAITS, ELSEWHERE, BACKWARD)
    )
    sizes = sorted(filter(None, map(len, groups)))
    is_decided = len(sizes) > 1 and sizes[0] < sizes[1] and 2 * sizes[0] < len(places)
    assert list(found.ranks) == (next(group for group in groups if len(group) == sizes[0]) if is_decided else [])


@given(st.permutations([WAITS, WAITS, LOADS, IN_FORWARD]))
def test_the_answer_does_not_depend_on_the_order_of_ranks(places: list[tuple[Frame, ...]]) -> None:
    found = vote.vote([_stack(rank, frames) for rank, frames in enumerate(places)], len(places))
    assert set(found.ranks) == {rank for rank, frames in enumerate(places) if frames in (LOADS, IN_FORWARD)}
    for pair in itertools.permutations(_stack(rank, frames) for rank, frames in enumerate(places)):
        assert vote.vote(pair, len(places)).ranks == found.ranks
