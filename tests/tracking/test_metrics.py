"""Steps to points: whatever the portions, the same points in the same order; none twice, none made up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from m5ws.records.ledger import AnyEvent, AttemptEnded, AttemptStarted, RankStarted, Step
from m5ws.tracking.mlflow.metrics import Point, Points

Told = tuple[int, str, AnyEvent]


def _attempt(attempt: int, first: int, last: int, world: int = 2, shift: float = 0.0) -> dict[str, list[AnyEvent]]:
    chains: dict[str, list[AnyEvent]] = {"node": [AttemptStarted(attempt=attempt, host="h")]}
    for rank in range(world):
        chains[str(rank)] = [RankStarted(rank=rank, world=world, pid=1)]
        chains[str(rank)] += [
            Step(step=number, quantities={"loss": (number + rank + shift).hex()}, tokens=10, seconds=0.5, time_s=number)
            for number in range(first, last + 1)
        ]
    return chains


def _told(attempt: int, chains: dict[str, list[AnyEvent]]) -> list[Told]:
    return [(attempt, rank, event) for rank, events in chains.items() for event in events]


def _points(told: list[Told]) -> list[Point]:
    points = Points()
    for one in told:
        points.add(*one)
    return list(points.take())


def test_a_point_has_the_quantities_of_rank_0_and_the_tokens_of_all_ranks() -> None:
    chains = _attempt(1, 4, 4, world=3)
    chains["1"][1] = Step(
        step=4, quantities={"loss": (9.0).hex(), "own": (7.0).hex()}, tokens=10, seconds=0.5, time_s=4
    )
    (point,) = _points(_told(1, chains))
    assert point.values == {"m5ws/loss": 4.0, "m5ws/own": 7.0, "m5ws/step_s": 0.5, "m5ws/tokens_per_s": 60.0}
    assert (point.attempt, point.step, point.time_ms) == (1, 4, 4000)


def test_a_step_waits_for_all_ranks() -> None:
    chains = _attempt(1, 1, 3)
    late = chains["1"].pop()
    points = Points()
    for one in _told(1, chains):
        points.add(*one)
    assert [point.step for point in points.take()] == [1, 2]
    points.add(1, "1", late)
    assert [point.step for point in points.take()] == [3]


def test_ranks_without_steps_do_not_count_after_the_end_of_an_attempt() -> None:
    chains = _attempt(1, 1, 3)
    chains["1"] = chains["1"][:1]
    told = _told(1, chains)
    assert _points(told) == []
    ended = AttemptEnded(outcome="finished", exit_code=0)
    assert [point.values["m5ws/loss"] for point in _points([*told, (1, "node", ended)])] == [1.0, 2.0, 3.0]


def test_a_step_that_a_killed_rank_lacks_is_no_point() -> None:
    chains = _attempt(1, 1, 3)
    chains["1"].pop()
    told = _told(1, chains) + _told(2, _attempt(2, 2, 4))
    assert [point.position for point in _points(told)] == [(1, 1), (1, 2), (2, 3), (2, 4)]


def test_an_equal_repeated_step_is_one_point_and_a_changed_repeated_step_is_two() -> None:
    equal = _told(1, _attempt(1, 1, 4)) + _told(2, _attempt(2, 3, 6))
    assert [point.position for point in _points(equal)] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    other = _told(1, _attempt(1, 1, 4)) + _told(2, _attempt(2, 3, 6, shift=1e-9))
    assert [point.step for point in _points(other)] == [1, 2, 3, 4, 3, 4, 5, 6]


@settings(max_examples=60)
@given(st.data())
def test_the_order_and_size_of_portions_do_not_change_the_points(data: st.DataObject) -> None:
    attempts = {1: _attempt(1, 1, 5, world=3), 2: _attempt(2, 4, 8, world=2)}
    attempts[2]["node"].append(AttemptEnded(outcome="finished", exit_code=0))
    whole = _points([one for attempt, chains in attempts.items() for one in _told(attempt, chains)])
    points = Points()
    found: list[Point] = []
    for attempt, chains in attempts.items():
        left = {rank: list(events) for rank, events in chains.items()}
        while any(left.values()):
            rank = data.draw(st.sampled_from(sorted(rank for rank, events in left.items() if events)))
            for _ in range(data.draw(st.integers(1, 4))):
                # The launcher's last word comes after all that the ranks wrote, as the supervisor writes it.
                if left[rank] and not (
                    isinstance(left[rank][0], AttemptEnded) and len(list(filter(None, left.values()))) > 1
                ):
                    points.add(attempt, rank, left[rank].pop(0))
            found += points.take()
    assert found == whole
