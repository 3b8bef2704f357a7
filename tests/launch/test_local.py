"""A launched process inherits file descriptors and variables, and ends with the process that launched it."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from m5ws.launch import child
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest
from tests.support.paths import ROOT


def _launched(tmp_path: Path, *argv: str) -> tuple[int, str]:
    """Return the status of a launch, and its log."""
    request = LaunchRequest(argv=argv, cwd=str(tmp_path), environment={}, log=str(tmp_path / "log"))
    process = LocalLauncher(os.environ).launch(request)
    while (status := process.poll()) is None:
        time.sleep(0.01)
    return status, (tmp_path / "log").read_text()


def test_a_program_that_is_missing_is_named_in_the_log(tmp_path: Path) -> None:
    status, log = _launched(tmp_path, "no-such-program")
    assert status == 127
    assert "no-such-program" in log


def test_a_launched_process_ignores_the_warnings_of_a_scheduler(tmp_path: Path) -> None:
    code = (
        "import os, signal; [os.kill(0, getattr(signal, name)) for name in ('SIGUSR1', 'SIGUSR2', 'SIGXCPU')]; print(1)"
    )
    assert _launched(tmp_path, sys.executable, "-c", code) == (0, "1\n")


def test_mounts_are_tried_by_many_threads_at_once(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(8) as pool:
        tried = set(pool.map(lambda _: child.can_mount(str(tmp_path / "one"), str(tmp_path / "other")), range(24)))
    assert len(tried) == 1
    assert not child.can_mount(str(tmp_path / "one"), str(tmp_path / "missing"))


def test_no_code_of_this_process_runs_in_a_fork() -> None:
    """A fork of a process with threads can crash, or wait for ever for a lock."""
    sources = {path: path.read_text() for path in (ROOT / "m5ws").rglob("*.py")}
    assert [path for path, text in sources.items() if "os.fork(" in text or "preexec_fn" in text] == []
