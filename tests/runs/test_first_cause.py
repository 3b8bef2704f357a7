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
_TIMED_OUT = "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:79] Timed out waiting 1000ms for recv operation"
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
    assert ("memory" in described) == (number == signal.SIGKILL)
    lost = [event.rank for _, event in events if isinstance(event, RankEnded) and event.error == _LOST]
    # The earliest error is named after the death, as its text may only look like a lost connection.
    assert described.partition("; the earliest error: ")[2] == (f"{_LOST} (rank {lost[0]})" if lost else "")


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
        assert _describe(events, statuses) == f"ValueError: first (rank {order[0]})"
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
    assert described.startswith("ranks" if early == 2 else f"rank {ranks} ended")
    assert "before the others; the earliest error: " in described
    assert (f"after step {last}" in described) == (last > 0)
    # A rank that was ahead of the others did not cause their errors.
    events += [(rank, Step(time_s=count, step=count + 1, quantities={})) for rank in range(ranks, ranks + early)]
    assert _describe(events, statuses).startswith(f"{_LOST} (rank ")


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1",
        "RuntimeError: [1] Read error [127.0.0.1]:1: Connection reset by peer",
        "RuntimeError: [/src/gloo/transport/tcp/unbound_buffer.cc:79] Timed out waiting 1000ms for recv operation",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited\nsocketProgress: closed",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: The rank was stopped:\nNCCL communicator was aborted on rank 0",
    ],
)
@pytest.mark.parametrize("raised", [None, False, True])
def test_an_error_of_a_lost_connection_is_named_after_a_death(error: str, raised: bool | None) -> None:
    """A RuntimeError that a `raise` statement raised is none, by any text."""
    died = [RankStatus(rank=1, status=-signal.SIGABRT)]
    described = _describe([(0, RankEnded(time_s=1, rank=0, error=error, raised=raised))], died)
    death = "rank 1 was ended by SIGABRT"
    is_cause = raised is True and error.startswith("RuntimeError")
    assert described == (f"{error} (rank 0); {death}" if is_cause else f"{death}; the earliest error: {error} (rank 0)")


def test_a_rank_that_torchrun_stopped_is_not_named_beside_a_death() -> None:
    stopped = RankEnded(time_s=1, rank=0, error="stopped by SIGTERM")
    died = [RankStatus(rank=0, status=143, is_consequence=True), RankStatus(rank=1, status=-signal.SIGABRT)]
    assert _describe([(0, stopped)], died) == "rank 1 was ended by SIGABRT"


@pytest.mark.parametrize("error", ["BrokenPipeError: [Errno 32] Broken pipe", "RuntimeError: no NaN", "exit status 3"])
def test_an_error_of_the_script_is_named_beside_a_death(error: str) -> None:
    died = [RankStatus(rank=1, status=-signal.SIGKILL)]
    assert _describe([(0, RankEnded(time_s=1, rank=0, error=error))], died).startswith(error)


@given(failure=_failure(), is_step_later=st.booleans())
def test_a_rank_that_ended_with_status_0_and_no_record_is_named(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]], is_step_later: bool
) -> None:
    """As by os._exit(0): torchrun lists all ranks that failed, and not this one."""
    ranks, count, order, events, statuses = failure
    events.append((order[0], RankEnded(time_s=count + 0.5, rank=order[0], error=_LOST)))
    statuses.append(RankStatus(rank=order[0], status=1))
    events.append((ranks, RankStarted(rank=ranks, world=ranks + 1, pid=1, facts={})))
    events.append((ranks, Step(time_s=count, step=count + is_step_later, quantities={})))
    described = _describe(events, statuses)
    error = f"{_LOST} (rank {order[0]})"
    if is_step_later:
        assert described == error
        return
    after = f" after step {count}," if count else ""
    assert described == f"rank {ranks} ended with status 0{after} before the others; the earliest error: {error}"


@given(ranks=st.integers(1, 3), has_record=st.booleans(), number=_SIGNALS, is_ahead=st.booleans())
def test_a_rank_that_ended_early_is_named_before_an_abort(
    ranks: int, has_record: bool, number: signal.Signals, is_ahead: bool
) -> None:
    """As by NCCL's watchdog. Another signal than SIGABRT is a cause of its own."""
    events = _steps(ranks + 1, 2)
    if has_record:
        events.append((ranks, RankEnded(time_s=3, rank=ranks)))
    if is_ahead:
        events.append((ranks, Step(time_s=2, step=3, quantities={})))
    described = _describe(events, [RankStatus(rank=rank, status=-number) for rank in range(ranks)])
    is_early = number == signal.SIGABRT and not is_ahead
    status = "" if has_record else " with status 0"
    assert described.startswith(f"rank {ranks} ended{status} after step 2, before the others; rank" * is_early)
    assert ("before the others" in described) == is_early and number.name in described


@given(
    failure=_failure(),
    is_first=st.booleans(),
    signalled_s=st.sampled_from([None, 0.3, 0.7]),
    number=st.none() | _SIGNALS,
)
def test_a_rank_that_another_program_stopped_before_all_errors_is_named(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]],
    is_first: bool,
    signalled_s: float | None,
    number: signal.Signals | None,
) -> None:
    ranks, count, order, events, statuses = failure
    events.append((order[0], RankEnded(time_s=count + 0.5, rank=order[0], error="ValueError: later")))
    statuses.append(RankStatus(rank=order[0], status=1))
    time_s = count + (0.4 if is_first else 0.6)
    events.append((ranks, RankEnded(time_s=time_s, rank=ranks, error="stopped by SIGTERM")))
    # torchrun may signal a process after its script has ended.
    signal_s = count + signalled_s if signalled_s is not None else None
    statuses.append(RankStatus(rank=ranks, status=143, is_consequence=signal_s is not None, signalled_s=signal_s))
    died = [RankStatus(rank=ranks + 1, status=-number)] if number is not None else []
    first = f"stopped by SIGTERM (rank {ranks})" if is_first and signalled_s != 0.3 else None
    dead = f"; rank {ranks + 1} was ended by {number.name}" if number is not None else ""
    assert _describe(events, [*statuses, *died]) == (first or f"ValueError: later (rank {order[0]})") + dead


@given(ranks=st.integers(1, 4), consequences=st.lists(st.booleans(), min_size=4, max_size=4))
def test_if_all_ranks_were_stopped_none_is_named(ranks: int, consequences: list[bool]) -> None:
    events = [*_steps(ranks, 1), *((n, RankEnded(time_s=1, rank=n, error="stopped by SIGTERM")) for n in range(ranks))]
    statuses = [RankStatus(rank=rank, status=143, is_consequence=consequences[rank]) for rank in range(ranks)]
    assert _describe(events, statuses) == "stopped by SIGTERM"


@given(failure=_failure(), is_behind=st.booleans(), is_timeout=st.booleans())
def test_ranks_that_still_ran_are_named_if_a_collective_timed_out(
    failure: tuple[int, int, list[int], list[tuple[int, AnyEvent]], list[RankStatus]], is_behind: bool, is_timeout: bool
) -> None:
    ranks, count, order, events, statuses = failure
    error = _TIMED_OUT if is_timeout else _LOST
    events.append((order[0], RankEnded(time_s=count + 0.5, rank=order[0], error=error)))
    statuses.append(RankStatus(rank=order[0], status=1))
    events.append((ranks, Step(time_s=count, step=count + 10 - is_behind, quantities={})))
    statuses.append(RankStatus(rank=ranks, status=-signal.SIGKILL, is_consequence=True))
    described = _describe(events, statuses)
    assert described.startswith(f"{error} (rank {order[0]})")
    assert described.endswith(f"rank {ranks} (after step {count + 10 - is_behind})") == is_timeout
    failed = {event.rank for _, event in events if isinstance(event, RankEnded) and event.error in (_LOST, error)}
    running = described.partition("; still running: ")[2].replace("ranks", "rank").split("rank ")
    named = {int(number) for text in running for number in text.split(" (")[0].rstrip(", ").split(", ") if number}
    assert named == (set(range(ranks + 1)) - failed if is_timeout else set())


@given(first=st.integers(0, 1), is_handling=st.booleans())
def test_the_error_that_a_stopped_rank_was_handling_is_named_after_a_timeout(first: int, is_handling: bool) -> None:
    """Its clean-up was slow, and others waited for it."""
    slow = 1 - first
    stopped = "stopped by SIGTERM" + (" while handling ValueError: first" if is_handling else "")
    ends = [
        (first, RankEnded(time_s=2, rank=first, error=_TIMED_OUT)),
        (slow, RankEnded(time_s=3, rank=slow, error=stopped)),
    ]
    statuses = [RankStatus(rank=first, status=1), RankStatus(rank=slow, status=143, is_consequence=True)]
    described = _describe([*_steps(2, 1), *ends], statuses)
    handling = f"; {stopped} (rank {slow})" if is_handling else ""
    assert described == f"{_TIMED_OUT} (rank {first}); still running: rank {slow} (after step 1){handling}"


@given(lost_s=st.permutations(range(3)), cause=st.integers(0, 2))
def test_the_earliest_error_is_named_after_a_later_cause(lost_s: list[int], cause: int) -> None:
    events = _steps(3, 0)
    for rank, time_s in enumerate(lost_s):
        error = "ValueError: cause" if rank == cause else _LOST
        events.append((rank, RankEnded(time_s=1 + time_s, rank=rank, error=error)))
    earliest = f"; the earliest error: {_LOST} (rank {lost_s.index(0)})" if lost_s[cause] else ""
    described = _describe(events, [RankStatus(rank=rank, status=1) for rank in range(3)])
    assert described == f"ValueError: cause (rank {cause}){earliest}"


def test_the_rank_of_an_error_is_not_named_if_it_is_alone() -> None:
    assert _describe([(0, RankEnded(time_s=1, rank=0, error="ValueError: no"))], []) == "ValueError: no"


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
