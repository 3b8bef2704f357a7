"""The failure of an attempt: killed ranks, then the first error that a rank recorded, in generated orders."""

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from m5ws.agent.failure import Failures, read_statuses
from m5ws.records.failure import Failure
from m5ws.records.ledger import RankEnded, RankStarted
from m5ws.wording.failures import describe_end

_HOW = st.sampled_from(["error", "stopped", "killed", "runs", "finished"])


def _describe(failures: Failures, statuses: dict[int, int]) -> str | None:
    reason = failures.find_reason(statuses)
    return describe_end(reason) if reason is not None else None


def _failures(hows: list[str], order: list[int]) -> tuple[Failures, dict[int, int]]:
    """Return the records and statuses of ranks that ended in an order."""
    failures, statuses = Failures(), dict[int, int]()
    for rank in range(len(hows)):
        failures.add(RankStarted(rank=rank, world=len(hows), pid=1))
    for rank, how in enumerate(hows):
        end = RankEnded(time_s=float(order.index(rank)), rank=rank)
        if how == "error":
            failures.add(RankEnded(time_s=end.time_s, rank=rank, failure=Failure(type="ValueError", text=f"of {rank}")))
        elif how == "stopped":
            failures.add(RankEnded(time_s=end.time_s, rank=rank, failure=Failure(signal=signal.SIGTERM)))
        elif how == "killed":
            statuses[rank] = -signal.SIGKILL
        elif how == "finished":
            failures.add(end)
    return failures, statuses


@given(st.lists(_HOW, min_size=2, max_size=5), st.permutations(range(5)))
def test_killed_ranks_come_first_and_then_the_earliest_error(hows: list[str], order: list[int]) -> None:
    failures, statuses = _failures(hows, order)
    described = _describe(failures, statuses)
    killed = [rank for rank, how in enumerate(hows) if how == "killed"]
    errors = sorted((rank for rank, how in enumerate(hows) if how == "error"), key=order.index)
    stopped = sorted((rank for rank, how in enumerate(hows) if how == "stopped"), key=order.index)
    parts = (described or "").split("; ") if described else []
    assert len(parts) == bool(killed) + bool(errors or (stopped and not killed))
    if killed:
        assert parts[0].startswith("rank" if len(killed) == 1 else "ranks")
        assert [int(word.strip(",")) for word in parts[0].split() if word.strip(",").isdigit()] == killed
        assert "killed by SIGKILL" in parts[0] and "memory" in parts[0]
    if errors:
        assert parts[-1] == f"ValueError: of {errors[0]} (rank {errors[0]})"
    elif stopped and not killed:
        assert parts == [f"stopped by SIGTERM (rank {stopped[0]})"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGSEGV, "rank 0 was killed by SIGSEGV"),
        (-99, "rank 0 was killed by signal 99"),
        (3, "rank 0 ended with status 3 without an error"),
    ],
)
def test_a_single_process_is_rank_0(status: int, words: str) -> None:
    failures = Failures()
    assert _describe(failures, {0: status}) == words
    failures.add(RankEnded(time_s=1.0, rank=0))
    assert _describe(failures, {0: status}) == words, "a process can die after the end of its script"


def test_a_rank_with_a_recorded_end_does_not_count_as_killed() -> None:
    failures = Failures()
    failures.add(RankEnded(time_s=1.0, rank=0, failure=Failure(type="ValueError", text="no")))
    assert _describe(failures, {0: -signal.SIGABRT}) == "ValueError: no"
    assert Failures().find_reason({0: 0}) is None


_FAILED = st.integers(-15, -1) | st.integers(1, 255)


@given(statuses=st.dictionaries(st.integers(0, 99), st.tuples(_FAILED, st.booleans()), min_size=1))
def test_statuses_omit_ranks_that_torchrun_stopped(
    tmp_path_factory: pytest.TempPathFactory, statuses: dict[int, tuple[int, bool]]
) -> None:
    failures = {rank: ProcessFailure(rank, 1000 + rank, status, "") for rank, (status, _) in statuses.items()}
    lines = [
        f"W1126 03:31:14.123000 99 api.py:1030] Sending process {1000 + rank} closing signal SIGTERM"
        for rank, (_, is_stopped) in statuses.items()
        if is_stopped
    ]
    log = tmp_path_factory.mktemp("log") / "launcher.log"
    log.write_text("\n".join([*lines, str(ChildFailedError("train.py", failures))]))
    assert read_statuses(log) == {rank: status for rank, (status, is_stopped) in statuses.items() if not is_stopped}


def test_a_log_without_statuses_gives_an_empty_mapping(tmp_path: Path) -> None:
    assert read_statuses(tmp_path / "missing.log") == {}
    (tmp_path / "launcher.log").write_bytes(b"\xff" * (2**20 + 1))
    assert read_statuses(tmp_path / "launcher.log") == {}
