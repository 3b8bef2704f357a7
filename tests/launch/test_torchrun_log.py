"""Statuses of ranks, read from torchrun's log."""

from datetime import datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from m5ws.launch import torchrun_log
from m5ws.launch.torchrun_log import RankStatus

_FAILED = st.integers(-15, -1) | st.integers(1, 255)


@given(statuses=st.dictionaries(st.integers(0, 99), st.tuples(_FAILED, st.booleans()), min_size=1))
def test_all_statuses_are_read(statuses: dict[int, tuple[int, bool]]) -> None:
    failures = {rank: ProcessFailure(rank, 1000 + rank, status, "") for rank, (status, _) in statuses.items()}
    lines = [
        f"W1126 03:31:{second}.123000 99 torch/distributed/elastic/multiprocessing/api.py:1030] {words}"
        for rank, (_, is_consequence) in statuses.items()
        if is_consequence
        for second, words in (
            (14, f"Sending process {1000 + rank} closing signal SIGTERM"),
            (44, f"Unable to shutdown process {1000 + rank} via SIGTERM, forcefully exiting via SIGKILL"),
        )
    ]
    signalled_s = datetime.fromisoformat("2026-11-26 03:31:14.123").timestamp()
    text = "\n".join([*lines, str(ChildFailedError("train.py", failures))])
    assert torchrun_log._statuses(text, 2026) == tuple(
        RankStatus(
            rank=rank, status=status, is_consequence=is_consequence, signalled_s=signalled_s if is_consequence else None
        )
        for rank, (status, is_consequence) in sorted(statuses.items())
    )


def test_a_signal_is_read_from_a_line_without_a_time() -> None:
    lines = [
        "Sending process 1000 closing signal SIGTERM",
        str(ChildFailedError("a", {0: ProcessFailure(0, 1000, 3, "")})),
    ]
    [status] = torchrun_log._statuses("\n".join(lines), 2026)
    assert status.is_consequence and status.signalled_s is None


def test_a_log_without_statuses_has_none(tmp_path: Path) -> None:
    assert torchrun_log.read_statuses(tmp_path / "missing.log") == ()
    (tmp_path / "launcher.log").write_bytes(b"\xff" * (2**20 + 1))
    assert torchrun_log.read_statuses(tmp_path / "launcher.log") == ()
