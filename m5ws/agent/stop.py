"""The early end of a node's processes: their deadline, the signal that they get, and who asked for it.

The ranks of a session agree on the last step by themselves (training/runtime/stop.py), and save a last checkpoint
after it. `[checkpoint] deadline_s` is the time for that.
"""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from m5ws.launch.interface import Process
from m5ws.records.launch import Saving, stop_signals

GRACE_S = 20.0
"""Seconds that processes have to end, in addition to the deadline of their last checkpoint."""


def patience_s(saving: Saving) -> int:
    """Return the seconds that processes have to end if they may save a last checkpoint."""
    return math.ceil(saving.deadline_s + GRACE_S)


def name_of(request: KeyboardInterrupt) -> str:
    """Return the name of the signal by which the user stops the processes."""
    return str(request) or signal.SIGINT.name


def number_of(name: str) -> signal.Signals:
    """Return the signal that the processes get. They end by SIGTERM for each warning of a scheduler."""
    return signal.SIGINT if name == signal.SIGINT.name else signal.SIGTERM


def at_request(process: Process, saving: Saving, request: KeyboardInterrupt) -> tuple[str, int]:
    """Stop the processes as the user asked, and return the signal's name and the exit status.

    The ranks may save a last checkpoint. A second request stops the processes at once.
    """
    name = name_of(request)
    try:
        return name, process.stop(patience_s(saving), number_of(name))
    except KeyboardInterrupt:
        return name, process.stop(0.0)


def early(process: Process | None) -> None:
    """Stop the processes, if they run. No rank saves a last checkpoint."""
    if process is not None and process.poll() is None:
        process.stop(GRACE_S)


@contextmanager
def unwarned() -> Iterator[None]:
    """Ignore the signals that stop a run, but for Ctrl-C: the processes have ended, and their results are being kept.

    A scheduler warns the agents of several nodes at different moments, and an agent may be here already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread.
        return
    warnings = [number for number in stop_signals() if number != signal.SIGINT]
    before = {number: signal.signal(number, lambda *_: None) for number in warnings}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
