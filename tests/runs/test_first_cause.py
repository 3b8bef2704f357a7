"""The first cause of a failed attempt, of ranks that die and fail in generated orders."""

import signal
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from m5ws.launch.torchrun_log import RankStatus
from m5ws.records.ledger import AnyEvent, AttemptStarted, Notice, RankEnded, RankStarted, Step
from m5ws.runs.first_cause import FirstCause

_LOST = "RuntimeError: Connection closed by peer"
_SIGNALS = st.sampled_from([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])


def _describe(events: Sequence[tuple[int, AnyEvent]], statuses: Sequence[RankStatus]) -> str:
    cause = FirstCause()
    # A rank's events are in order. Those of two ranks may be read in any order, and here by rank.
    for rank, event in sorted(events, key=lambda entry: entry[0]):
        cause.add(str(rank), event)
    described = cause.describe(sorted(statuses, key=lambda status: status.rank))
    assert described is not None
    return described


def _steps(ranks: int, count: int) -> list[tuple[int, AnyEvent]]:
    """Return the start and the steps of all ranks, until second `count`."""
    started = [(rank, RankStarted(rank=rank, world=ranks, pid=1, facts={})) for rank in range(ranks)]
    steps = [
        (rank, Step(time_s=step, step=step, quantities={})) for step in range(1, count + 1) for rank in range(ranks)
    ]
    return [*started, *steps]


@st.composite
def _failure(draw: st.DrawFn) -> tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]]:
    """Return the number of ranks, the last step, the order of failure, and the records of all but the first."""
    ranks, count = draw(st.integers(2, 6)), draw(st.integers(0, 4))
    order = draw(st.permutations(range(ranks)))
    events, statuses = _steps(ranks, count), []
    for place, rank in enumerate(order[1:], 1):
        how = draw(st.sampled_from(["error", "stopped", "killed by torchrun"]))
        if how == "killed by torchrun":
            statuses.append(RankStatus(rank=rank, status=-signal.SIGKILL, is_consequence=True))
            continue
        error = _LOST if how == "error" else "stopped by SIGTERM"
        events.append((rank, RankEnded(time_s=count + place, rank=rank, error=error)))
        statuses.append(RankStatus(rank=rank, status=1, is_consequence=how == "stopped"))
    return ranks, count, order, events, statuses


@given(failure=_failure(), number=_SIGNALS)
def test_a_rank_that_died_comes_before_the_errors_of_others(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]], number: signal.Signals
) -> None:
    _, _, order, events, statuses = failure
    described = _describe(events, [*statuses, RankStatus(rank=order[0], status=-number)])
    assert described.startswith(f"rank {order[0]} ") and number.name in described
    assert ("memory" in described) == (number == signal.SIGKILL) and _LOST not in described


@given(failure=_failure(), is_late=st.booleans(), number=_SIGNALS)
def test_an_error_comes_before_later_deaths(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]],
    is_late: bool,
    number: signal.Signals,
) -> None:
    ranks, count, order, events, statuses = failure
    events.append((order[0], RankEnded(time_s=count + 0.5, rank=order[0], error="ValueError: first")))
    statuses.append(RankStatus(rank=order[0], status=1))
    if is_late:
        # A further rank goes on, and dies before torchrun sees the failure.
        events.append((ranks, Step(time_s=count + 0.6, step=count + 1, quantities={})))
        statuses.append(RankStatus(rank=ranks, status=-number))
    assert _describe(events, statuses) == "ValueError: first"


def test_deaths_are_described() -> None:
    ended: list[tuple[int, AnyEvent]] = [(0, RankEnded(time_s=1, rank=0)), (1, RankEnded(time_s=1, rank=1))]
    both = [RankStatus(rank=rank, status=-signal.SIGSEGV) for rank in (0, 1)]
    assert _describe([], both) == "ranks 0, 1 were ended by SIGSEGV"
    assert "after the end of its script" in _describe(ended, both[1:])
    assert _describe([], [RankStatus(rank=2, status=3)]) == "rank 2 ended with status 3 without an error"
    assert "signal 99" in _describe([], [RankStatus(rank=2, status=-99)])


def test_without_a_failure_there_is_no_cause() -> None:
    cause = FirstCause()
    cause.add("launcher", AttemptStarted(attempt=1, host="h", observed="0" * 64))
    cause.add("0", Notice(kind="k", message="m"))
    cause.add("0", RankEnded(rank=0))
    assert cause.describe([]) is None
