"""A launched process inherits file descriptors and variables, and ends with the process that launched it."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from m5ws.launch import child
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest
from tests.support.paths import ROOT


def test_a_variable_that_is_unset_is_not_inherited_and_one_that_is_set_anew_is(tmp_path: Path) -> None:
    request = LaunchRequest(
        argv=(sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"),
        cwd=str(tmp_path),
        environment={"SET": "new"},
        log=str(tmp_path / "log"),
        unset=("GONE",),
    )
    process = LocalLauncher({"GONE": "1", "SET": "old", "KEPT": "1"}).launch(request)
    while process.poll() is None:
        time.sleep(0.01)
    found = json.loads((tmp_path / "log").read_text())
    assert "GONE" not in found and (found["SET"], found["KEPT"]) == ("new", "1")


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


def test_a_launched_process_ends_with_the_process_that_launched_it(tmp_path: Path) -> None:
    sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = f"""
import os, sys, time
from m5ws.launch.local import LocalLauncher
from m5ws.records.launch import LaunchRequest
LocalLauncher(os.environ).launch(
    LaunchRequest(argv=(sys.executable, "-c", {sleeper!r}), cwd=".", environment={{}}, log={str(tmp_path / "log")!r})
)
time.sleep(600)
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    log = tmp_path / "log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert supervisor.poll() is None
        time.sleep(0.01)
    supervisor.kill()
    supervisor.wait()
    pid = int(log.read_text())
    while _runs(pid):
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
