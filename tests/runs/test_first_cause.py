"""The first cause of a failed attempt, of ranks that die and fail in generated orders."""

import signal
from collections.abc import Sequence

import pytest
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


@given(failure=_failure(), is_later=st.booleans(), number=st.none() | _SIGNALS)
def test_another_error_than_a_lost_connection_is_named_first(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]],
    is_later: bool,
    number: signal.Signals | None,
) -> None:
    """A further rank dies, before or after its step at the time of the error. No event has the time of its death."""
    ranks, count, order, events, statuses = failure
    events.append((order[0], RankEnded(time_s=count + 0.5, rank=order[0], error="ValueError: first")))
    statuses.append(RankStatus(rank=order[0], status=1))
    if number is None:
        assert _describe(events, statuses) == "ValueError: first"
        return
    events.append((ranks, Step(time_s=count + (0.6 if is_later else 0), step=count + 1, quantities={})))
    described = _describe(events, [*statuses, RankStatus(rank=ranks, status=-number)])
    assert described == f"ValueError: first (rank {order[0]}); rank {ranks} was ended by {number.name}"


@given(failure=_failure(), early=st.integers(1, 2), is_behind=st.booleans())
def test_a_rank_that_ended_before_the_others_is_named(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]], early: int, is_behind: bool
) -> None:
    """Its end is recorded before or after their errors. A rank that fails in its next step has the same last step."""
    ranks, count, order, events, statuses = failure
    events.append((order[0], RankEnded(time_s=count + 1, rank=order[0], error=_LOST)))
    statuses.append(RankStatus(rank=order[0], status=1))
    last = max(0, count - is_behind)
    for rank in range(ranks, ranks + early):
        events += [(rank, Step(time_s=last, step=last, quantities={})), (rank, RankEnded(time_s=count + 2, rank=rank))]
    described = _describe(events, statuses)
    assert described.startswith("ranks" if early == 2 else f"rank {ranks} ended") and described.endswith("the others")
    assert (f"after step {last}" in described) == (last > 0)
    # A rank that was ahead of the others did not cause their errors.
    events += [(rank, Step(time_s=count, step=count + 1, quantities={})) for rank in range(ranks, ranks + early)]
    assert _describe(events, statuses) == _LOST


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1",
        "RuntimeError: [1] Read error [127.0.0.1]:1: Connection reset by peer",
        "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:79] Timed out waiting 1000ms for recv operation",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited\nsocketProgress: closed",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: The rank was stopped:\nNCCL communicator was aborted on rank 0",
        "stopped by SIGTERM",
    ],
)
def test_an_error_of_a_lost_connection_is_not_named_beside_a_death(error: str) -> None:
    died = [RankStatus(rank=1, status=-signal.SIGABRT)]
    assert _describe([(0, RankEnded(time_s=1, rank=0, error=error))], died) == "rank 1 was ended by SIGABRT"


@pytest.mark.parametrize("error", ["BrokenPipeError: [Errno 32] Broken pipe", "RuntimeError: no NaN", "exit status 3"])
def test_an_error_of_the_script_is_named_beside_a_death(error: str) -> None:
    died = [RankStatus(rank=1, status=-signal.SIGKILL)]
    assert _describe([(0, RankEnded(time_s=1, rank=0, error=error))], died).startswith(error)


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
