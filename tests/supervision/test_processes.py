"""A process from outside: its stack, its state, and the reason if there is no stack."""

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from m5ws.supervision import processes
from tests.support.waiting import wait_for

SCRIPT = """
import subprocess, sys, time
def work():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    print(child.pid, flush=True)
    time.sleep(1000)
work()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_has_a_stack_also_if_it_is_stopped(script: "subprocess.Popen[str]", tmp_path: Path) -> None:
    def stack() -> list[tuple[str, str]]:
        frames, _ = processes.take_stack(script.pid, str(tmp_path))
        return [(frame.file, frame.function) for frame in frames]

    expected = [("train.py", "work"), ("train.py", "<module>")]
    wait_for(lambda: stack() == expected)
    script.send_signal(signal.SIGSTOP)
    wait_for(lambda: processes.read_state(script.pid) == "T")
    assert stack() == expected


def test_the_processor_time_includes_processes_below(script: "subprocess.Popen[str]") -> None:
    before_s = processes.read_processor_s(script.pid)
    wait_for(lambda: processes.read_processor_s(script.pid) > before_s + 0.1)


def test_a_process_that_is_gone_has_no_stack_and_the_reason() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    frames, problem = processes.take_stack(process.pid, "")
    assert frames == () and problem is not None and problem.startswith("py-spy: ")
    assert processes.read_state(process.pid) == "gone"
    assert processes.read_processor_s(process.pid) == 0.0


def test_without_py_spy_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    frames, problem = processes.take_stack(os.getpid(), "")
    assert frames == () and problem is not None and "m5ws[supervise]" in problem
