"""A rank with a script that does not use m5ws, and with one that receives a request to stop."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from m5ws.records import codec
from m5ws.records.ledger import RESUME_LIMIT, Notice, RankEnded, RankStarted

PLAIN = str(Path(__file__).parent / "scripts" / "plain.py")
SIGNALLED = str(Path(__file__).parent / "scripts" / "signalled.py")


def ended(attempt: Any) -> list[str | None]:
    return [event.error for event in attempt.of(RankEnded)]


def test_a_script_runs_as_python_would_run_it(runner: Any) -> None:
    attempt = runner(PLAIN, "well", "--flag")
    assert attempt.status == 0 and ended(attempt) == [None]
    assert attempt.log() == f"called as __main__ {[PLAIN, 'well', '--flag']} scripts\n"
    (started,) = attempt.of(RankStarted)
    assert started.facts["threads"] == "1" and started.facts["deterministic"] == "strict"
    assert (attempt.directory / "launcher.log").read_text() == ""


@pytest.mark.parametrize(
    ("how", "status", "error"),
    [
        ("raise", 1, "ValueError: something in the script (plain.py:11)"),
        ("raise without a log", 1, "ValueError: something in the script (plain.py:11)"),
        ("stopped", 143, "stopped by SIGTERM"),
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
def test_a_script_may_save_its_state_when_it_is_interrupted(
    runner: Any, how: str, status: int, error: str | None
) -> None:
    attempt = runner(PLAIN, how)
    assert attempt.status == status and ended(attempt) == [error]
    assert attempt.log().endswith("saved\n")


def test_code_from_the_authors_checkout_is_refused(runner: Any) -> None:
    author = runner.tmp / "author"
    (author / "deep").mkdir(parents=True)
    (author / "deep" / "from_the_checkout.py").write_text("")
    attempt = runner(PLAIN, "import", str(author / "deep"))
    assert attempt.status == 2
    (error,) = ended(attempt)
    assert error is not None and error.startswith("NotIsolated") and "from_the_checkout" in error


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
    assert [max(first.steps(rank)) for rank in (0, 1)] == [4, 4]
    assert sorted(first.contents) == [2, 4]
    assert first.of(RankEnded, 1)[0].error == "stopped by SIGTERM"
    second = runner(tiny, "ddp", "5", ranks=2, resume=first.newest)
    assert second.status == 0, second.log()
    assert first.steps(1) | second.steps(1) == whole.steps(1)
    assert second.contents[5] == whole.contents[5]
    assert [event for event in whole.of(Notice) if event.kind != RESUME_LIMIT] == []


def test_a_signal_in_a_save_ends_the_script_when_the_file_is_complete(runner: Any) -> None:
    file = runner.tmp / "saved.pt"
    attempt = runner(PLAIN, "stopped_in_save", str(file))
    assert ended(attempt) == ["stopped by SIGTERM"] and attempt.status == 128 + signal.SIGTERM
    assert torch.load(file, weights_only=False)["weights"].shape == (1000,)


@pytest.mark.parametrize("line", range(1, 25))
def test_signals_at_every_line_of_a_ranks_end_leave_one_whole_record_of_it(runner: Any, line: int) -> None:
    attempt = runner(SIGNALLED, str(line))
    events = attempt.events[0]
    assert isinstance(events[-1], RankEnded) and len(events) == len(set(map(codec.encode, events)))
    assert ended(attempt) in ([None], ["stopped by SIGTERM"])
    assert attempt.status == (0 if ended(attempt) == [None] else 128 + signal.SIGTERM)


def test_importing_m5ws_or_its_settings_for_ranks_loads_no_torch() -> None:
    code = "import sys, m5ws, m5ws.records.determinism; m5ws.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
