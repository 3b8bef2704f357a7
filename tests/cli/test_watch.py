"""`m5ws watch`: the view of a run, as lines and on a terminal; the run is never touched."""

import math
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.cli import watch
from m5ws.cli.terminal import live_view
from m5ws.records.exact import encode
from m5ws.records.failure import EndReason, Failure
from m5ws.records.ledger import NODE, AttemptEnded, CheckpointPublished, Event, Notice, RankEnded, RankStarted, Step
from m5ws.reports.live import LiveRun, LiveState
from m5ws.repository.references import checkpoints
from m5ws.repository.repository import Repository
from m5ws.runs.state import AttemptState
from tests.cli.conftest import M5
from tests.support.records import planted

_RUN = "7c1d00000009"
_BEGIN_S = 1000.0


def _step(number: int, loss: float | None = None, total: int | None = 400) -> Step:
    quantities = {"grad_norm": encode(2.0), "lr": encode(0.1), "loss": encode(1 / number if loss is None else loss)}
    return Step(time_s=_BEGIN_S + number / 4, step=number, quantities=quantities, tokens=50, seconds=0.25, total=total)


@pytest.fixture
def running(home: Repository) -> Repository:
    """A store with a run that goes on: 100 steps of two ranks, with one loss that is not a number, and a checkpoint."""
    planted.run(home, _RUN, name="trial")
    planted.begin(home, _RUN, time_s=_BEGIN_S, host="node")
    point = CheckpointPublished(step=50, name=checkpoints.name(50, 1), checkpoint="0" * 64, content="0" * 64)
    for rank in (0, 1):
        began = RankStarted(time_s=_BEGIN_S, rank=rank, world=2, pid=1)
        steps: list[Event] = [_step(number, math.nan if number == 60 else None) for number in range(1, 101)]
        planted.append(home, _RUN, 1, str(rank), began, *steps, *([point] if rank == 0 else []))
    return home


@pytest.fixture
def ended(running: Repository) -> Repository:
    failure = Failure(type="ValueError", text="no")
    planted.append(running, _RUN, 1, "1", RankEnded(rank=1, failure=failure))
    notice = Notice(time_s=_BEGIN_S + 26, kind="input-modified", message="data\nwas changed", step=100)
    end = AttemptEnded(
        time_s=_BEGIN_S + 65, outcome="failed", exit_code=1, reason=EndReason(kind="ranks failed", failure=failure)
    )
    planted.append(running, _RUN, 1, NODE, notice, end)
    return running


def test_watch_shows_the_step_values_and_checkpoints_of_a_run(m5: M5, running: Repository) -> None:
    lines = m5("watch", _RUN, "--once").out.splitlines()
    assert lines[0] == f"run {_RUN} trial  running, attempt 1 on node, 2 ranks"
    assert lines[1].startswith("step 100/400  4 steps/s  400 tokens/s  1m 15s left  last event ")
    assert lines[2] == "loss 0.01  lr 0.1  grad_norm 2"
    assert "step 60" in lines[3]
    assert lines[-1] == "1 checkpoint, the last after step 50"


def test_a_run_that_has_ended_is_shown_once_and_the_command_ends(m5: M5, ended: Repository) -> None:
    done = m5("watch", _RUN)
    assert done.status == 0
    assert done.out == m5("watch", _RUN, "--once").out
    for text in ("failed", "took 1m 05s", "input-modified (step 100): data was changed", "rank 1: ValueError: no"):
        assert text in done.out


def test_watch_as_json_prints_the_state(m5: M5, running: Repository) -> None:
    document = m5("watch", _RUN, "--json").document
    assert (document["newest"]["standing"], document["newest"]["last_step"], document["steps_per_s"]) == (
        "running",
        100,
        4.0,
    )
    assert (document["not_finite"], document["last_checkpoint"]) == (60, 50)


def test_watch_without_a_terminal_prints_the_view_at_the_end(
    running: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    number = [100]

    def pause() -> None:
        number[0] += 1
        planted.append(running, _RUN, 1, "0", _step(number[0]))
        if number[0] == 105:
            planted.append(running, _RUN, 1, NODE, AttemptEnded(outcome="finished", exit_code=0))

    live = LiveRun(running, _RUN)
    live.refresh()
    watch.follow(live, watch._show_end, pause)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"run {_RUN} trial  finished") and printed[1].startswith("step 105/400")


def test_a_slow_run_has_seconds_a_step_and_no_time_left_without_a_total() -> None:
    state = LiveState(
        run=_RUN, name=None, newest=AttemptState(attempt=1, last_step=3), steps_per_s=0.25, tokens_per_s=1234.5
    )
    assert live_view.lines(state, 0.0)[1] == "step 3  4 s/step  1,234 tokens/s"


# --- a terminal


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def _start(place: Path, terminal: tuple[int, int]) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "m5ws", "-C", str(place), "watch", _RUN]
    environment = os.environ | {"COLUMNS": "60", "LINES": "20", "TERM": "xterm"}
    return subprocess.Popen(argv, stdout=terminal[1], stderr=subprocess.PIPE, env=environment)


def _read_until(descriptor: int, text: str) -> str:
    shown = b""
    while text.encode() not in shown:
        shown += os.read(descriptor, 65536)
    return shown.decode(errors="replace")


def test_ctrl_c_ends_the_view_and_changes_nothing_in_the_store(
    running: Repository, place: Path, terminal: tuple[int, int]
) -> None:
    before = {stat.key: stat.size_bytes for stat in running.store.list("")}
    process = _start(place, terminal)
    shown = _read_until(terminal[0], "the last after step 50")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, b"")
    assert "step 100/400" in shown and "\x1b[?25l" in shown
    assert "\x1b[?25h" in _read_until(terminal[0], "\x1b[?25h"), "the cursor is shown again"
    assert {stat.key: stat.size_bytes for stat in running.store.list("")} == before


def test_a_view_on_a_terminal_ends_with_the_run(running: Repository, place: Path, terminal: tuple[int, int]) -> None:
    process = _start(place, terminal)
    _read_until(terminal[0], "the last after step 50")
    planted.append(running, _RUN, 1, NODE, AttemptEnded(outcome="finished", exit_code=0))
    assert "finished" in _read_until(terminal[0], "\x1b[?25h")
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None and process.stderr.read() == b""
    process.stderr.close()
