"""The shell around an agent does the same after all lines of a user before it."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m5ws.engines import shell
from tests.support.waiting import wait_for

_SETUPS = ["", "set -e", "set -u", "set -euo pipefail", "set -f; IFS=,", "set -m", "asked=yes", "trap 'true' EXIT TERM"]


def _start(folder: Path, setup: str, lines: str, agent: str) -> "subprocess.Popen[str]":
    (folder / "agent.sh").write_text(f"cd {folder}; {agent}\n")
    return subprocess.Popen(["bash", "-c", f"{setup}\n{lines}"], start_new_session=True, text=True)


def _loop(agent: str) -> str:
    return f"{shell.loop(agent, 4)}exit ${{status:-143}}\n"


@pytest.mark.parametrize("setup", _SETUPS)
@pytest.mark.parametrize("lines", [_loop, shell.once])
def test_a_signal_waits_for_the_last_checkpoint_of_an_agent(
    tmp_path: Path, setup: str, lines: Callable[[str], str]
) -> None:
    agent = "trap 'sleep 0.2; touch saved; kill $!; exit 75' TERM USR2; sleep 60 & touch started; wait"
    process = _start(tmp_path, setup, lines(f"bash {tmp_path}/agent.sh"), agent)
    wait_for((tmp_path / "started").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 75 and (tmp_path / "saved").exists()


@pytest.mark.parametrize("setup", _SETUPS)
def test_an_agent_that_asks_for_it_starts_again(tmp_path: Path, setup: str) -> None:
    agent = "echo >> starts; [ $(wc -l < starts) -ge 3 ] || exit 75"
    assert _start(tmp_path, setup, _loop(f"bash {tmp_path}/agent.sh"), agent).wait(240) == 0
    assert len((tmp_path / "starts").read_text()) == 3
