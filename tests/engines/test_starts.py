"""The process around an agent has the agent's status, whatever signals come, and whatever lines came before."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from m5ws.engines import starts
from tests.support.waiting import wait_for

_SETUPS = ["", "set -euo pipefail", "set -f; IFS=,", "set -m", "trap 'true' EXIT TERM", "trap '' TERM"]
_PASSED = [signal.SIGTERM, signal.SIGUSR2]


def _start(
    folder: Path, agent: str, passed: signal.Signals = signal.SIGTERM, restarts: int = 0, setup: str = ""
) -> "subprocess.Popen[str]":
    (folder / "agent.sh").write_text(f"cd {folder}; {agent}\n")
    words = starts.command(sys.executable, ("bash", f"{folder}/agent.sh"), passed, restarts)
    return subprocess.Popen(["bash", "-c", f"{setup}\nexec {shlex.join(words)}"], start_new_session=True, text=True)


@pytest.mark.parametrize("setup", _SETUPS)
@pytest.mark.parametrize("passed", _PASSED)
def test_a_signal_waits_for_the_last_checkpoint_of_an_agent(tmp_path: Path, setup: str, passed: signal.Signals) -> None:
    agent = f"trap 'sleep 0.2; touch saved; kill $!; exit 75' {passed.name}; sleep 60 & touch started; wait"
    process = _start(tmp_path, agent, passed, 4, setup)
    wait_for((tmp_path / "started").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75 and (tmp_path / "saved").exists()


@pytest.mark.parametrize("status", [0, 1, 75])
def test_signals_at_any_moment_leave_the_status_of_an_agent(tmp_path: Path, status: int) -> None:
    agent = f"trap '' TERM; touch started; until [ -e end ]; do sleep 0.01; done; exit {status}"
    for _ in range(8):
        process = _start(tmp_path, agent)
        wait_for((tmp_path / "started").exists)
        (tmp_path / "end").touch()
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0003)
        assert process.returncode == status
        (tmp_path / "started").unlink()
        (tmp_path / "end").unlink()


@pytest.mark.parametrize("passed", _PASSED)
def test_a_signal_at_any_moment_reaches_an_agent(tmp_path: Path, passed: signal.Signals) -> None:
    agent = f"trap 'exit 75' {passed.name}; echo >> starts; exit 75"
    for delay_s in (0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.02, 0.03):
        process = _start(tmp_path, agent, passed, 1_000_000)
        wait_for((tmp_path / "starts").exists)
        time.sleep(delay_s)
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == 75
        (tmp_path / "starts").unlink()


@pytest.mark.parametrize("setup", _SETUPS)
@pytest.mark.parametrize("end", ["exit 75", "kill -9 $$"])
def test_an_agent_that_asks_for_it_starts_again(tmp_path: Path, setup: str, end: str) -> None:
    agent = f"echo >> starts; [ $(wc -l < starts) -ge 3 ] || {end}"
    assert _start(tmp_path, agent, restarts=4, setup=setup).wait(240) == 0
    assert len((tmp_path / "starts").read_text()) == 3


@pytest.mark.parametrize(
    ("end", "status"), [("exit 75", 75), ("kill -9 $$", 75), ("exit 137", 75), ("exit 1", 1), ("exit 130", 130)]
)
def test_the_last_status_is_returned(tmp_path: Path, end: str, status: int) -> None:
    assert _start(tmp_path, f"echo >> starts; {end}", restarts=1).wait(240) == status
    assert len((tmp_path / "starts").read_text()) == (2 if status == 75 else 1)
