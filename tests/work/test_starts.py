"""One run at a time writes its input files, also if its process is killed."""

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

from m5ws.agent.prepare import lock_starts


def _start(root: Path, has_begun: Event) -> None:
    with lock_starts(root, None):
        has_begun.set()
        signal.pause()


def test_a_start_waits_for_the_start_of_another_process_and_reports_it(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    has_begun, reports = processes.Event(), list[str]()
    other = processes.Process(target=_start, args=(tmp_path, has_begun))
    other.start()
    assert has_begun.wait(60.0) and other.pid is not None

    def progress(activity: str, done: int, total: int) -> None:
        reports.append(activity)
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)

    with lock_starts(tmp_path, progress):
        assert reports == ["waiting for the input files of another run"]
        other.join(60.0)
        assert other.exitcode == -signal.SIGKILL
