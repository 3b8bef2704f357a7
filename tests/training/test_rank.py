"""A rank with a script that does not use m5ws, and with a script that receives a request to stop."""

import functools
import itertools
import linecache
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from m5ws.records import codec
from m5ws.records.failure import Failure
from m5ws.records.ledger import Notice, RankEnded, RankStarted
from m5ws.repository.ledger import ledger
from m5ws.repository.ledger.spool import SpoolReader, SpoolWriter, chain, genesis
from m5ws.wording.failures import describe_failure

PLAIN = str(Path(__file__).parent / "scripts" / "plain.py")
FORKED = str(Path(__file__).parent / "scripts" / "forked.py")
SIGNALLED = str(Path(__file__).parent / "scripts" / "signalled.py")


def ended(attempt: Any) -> list[str | None]:
    failures = [event.failure for event in attempt.of(RankEnded)]
    return [None if failure is None else describe_failure(failure) for failure in failures]


def test_a_script_in_a_rank_runs_as_in_plain_python(runner: Any) -> None:
    attempt = runner(PLAIN, "well", "--flag")
    assert attempt.status == 0 and ended(attempt) == [None]
    assert attempt.log() == f"called as __main__ {[PLAIN, 'well', '--flag']} scripts\n"
    (started,) = attempt.of(RankStarted)
    assert started.facts["threads"] == "1" and started.facts["deterministic"] == "strict"
    assert (attempt.directory / "launcher.log").read_text() == ""


@pytest.mark.parametrize(
    ("how", "status", "error"),
    [
        ("raise", 1, "ValueError: something in the script (plain.py:12)"),
        ("raise without a log", 1, "ValueError: something in the script (plain.py:12)"),
        ("7", 7, "exit status 7"),
    ],
)
def test_a_script_that_fails_is_a_failed_rank(runner: Any, how: str, status: int, error: str) -> None:
    attempt = runner(PLAIN, how)
    assert attempt.status == status and ended(attempt) == [error]
    assert ("Traceback" in attempt.log()) == (how == "raise")


@pytest.mark.parametrize(
    ("how", "status", "error"), [("interrupted", 130, "stopped by SIGINT"), ("interrupted and ends", 0, None)]
)
def test_an_interrupted_script_can_save_its_state(runner: Any, how: str, status: int, error: str | None) -> None:
    attempt = runner(PLAIN, how)
    assert attempt.status == status and ended(attempt) == [error]
    assert "saved\n" in attempt.log()


def test_installed_packages_of_an_environment_in_the_checkout_are_allowed(runner: Any) -> None:
    packages = runner.tmp / "author" / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "from_the_checkout.py").write_text("")
    assert runner(PLAIN, "import", str(packages)).status == 0


def test_a_stop_ends_all_ranks_after_the_same_step_and_the_resume_is_exact(runner: Any, tiny: str) -> None:
    whole = runner(tiny, "ddp", "5", ranks=2)
    assert whole.status == 0, whole.log()
    assert "model.first.weight" in whole.states(0)[0][0]  # named without the wrapper
    runner.run = "000000000002"
    first = runner(tiny, "ddp", "5", ranks=2, kill=f"1:3:{signal.SIGTERM:d}")
    assert first.status != 0
    last, other = (max(first.steps(rank)) for rank in (0, 1))
    assert last == other >= 3 and max(first.contents) == last
    assert first.of(RankEnded, 1)[0].failure == Failure(signal=signal.SIGTERM)
    second = runner(tiny, "ddp", "5", ranks=2, resume=first.newest)
    assert second.status == 0, second.log()
    assert first.steps(1) | second.steps(1) == whole.steps(1)
    assert second.contents[5] == whole.contents[5]
    assert [event for event in whole.of(Notice) if event.kind != "resume-limit"] == []


def test_sigterm_ends_a_script_without_a_session_as_in_python(runner: Any) -> None:
    attempt = runner(PLAIN, "stopped")
    assert attempt.status == -signal.SIGTERM and ended(attempt) == []


def test_a_warning_of_a_scheduler_does_nothing_in_a_script_without_a_session(runner: Any) -> None:
    attempt = runner(PLAIN, "warned")
    assert attempt.status == 0 and ended(attempt) == [None], attempt.log()
    assert "trapped\n" in attempt.log()


@pytest.mark.parametrize(("how", "status"), [("end", 0), ("exit", 3), ("raise", 1)])
def test_a_fork_that_leaves_the_script_is_not_the_end_of_the_rank(runner: Any, how: str, status: int) -> None:
    attempt = runner(FORKED, how)
    assert attempt.status == 0 and ended(attempt) == [None]
    assert f"the fork ended with {status}\n" in attempt.log()
    assert ("ValueError: in the fork" in attempt.log()) == (how == "raise")


@pytest.mark.parametrize("line", range(1, 25))
def test_a_signal_during_the_end_of_a_rank_leaves_at_most_one_record(runner: Any, line: int) -> None:
    attempt = runner(SIGNALLED, str(line))
    events = attempt.events[0]
    assert len(events) == len(set(map(codec.encode, events)))
    assert (attempt.status, ended(attempt)) in ((0, [None]), (-signal.SIGTERM, []))
    assert isinstance(events[-1], RankEnded) or not ended(attempt)


def test_ctrl_c_during_an_append_leaves_a_whole_event_or_no_event(tmp_path: Path) -> None:
    line, is_reached = 0, True
    while is_reached:
        line += 1
        path = tmp_path / str(line)
        writer = SpoolWriter(path, genesis("r", 1, "0"))
        events = [Notice(kind="limit", message=text) for text in "abc"]
        writer.append(events[0])
        is_reached = _is_interrupted(line, functools.partial(writer.append, events[1]))
        writer.append(events[2])
        frames, head = SpoolReader(path).read(), genesis("r", 1, "0")
        for frame in frames:
            head = chain(head, frame)
        texts = [event.message for event in map(ledger.decode_event, frames) if isinstance(event, Notice)]
        assert head == writer.head and texts in (["a", "b", "c"], ["a", "c"])
    assert line > 5


def _is_interrupted(line: int, call: Callable[[], object]) -> bool:
    """Call, and raise KeyboardInterrupt before a line of SpoolWriter in the order of execution; False without it.

    CPython raises none between the end of a block and the release of its lock.
    """
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename.endswith("spool.py") and code.co_name in ("append", "_write"):
            is_block = linecache.getline(code.co_filename, frame.f_lineno).strip().startswith("with ")
            if event == "line" and not is_block and next(lines) == line:
                raise KeyboardInterrupt
            return trace
        return None

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
