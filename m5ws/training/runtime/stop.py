"""A request to end this rank (a signal of `STOP_SIGNALS`), and the time that is left for its last checkpoint.

The ranks get the signal at different moments, or only some of them get it. A session ends all of them after one step
(training/session/agreement.py).

Only a session handles these signals, from its begin to its end, and its handler only notes the first signal.
Before and after, and in scripts without a session, a rank has Python's own handlers, and does nothing at a scheduler's
warning (training/rank.py).
"""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from m5ws.records.launch import stop_signals


class StopRequest:
    """A rank's view of the request. The launcher reads in a file of the rank whether its session handles signals.

    `processes` is the folder of these files.
    """

    def __init__(self, processes: Path) -> None:
        self._pid = os.getpid()
        self._file = processes / str(self._pid)
        self._before: dict[int, Any] = {}
        self._requested: int | None = None
        self._requested_s: float | None = None

    def register(self) -> None:
        """Let the launcher know this process as a rank."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("session" if self._before else "")

    def begin(self) -> None:
        """Handle signals from now on: a session begins. Python allows it in the main thread alone."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        self._before = {number: signal.signal(number, self._on_signal) for number in stop_signals()}
        self.register()

    def finish(self) -> None:
        """Put the handlers back that the session found: it has ended."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if self._before:
            self._before = {}
            self.register()

    def end(self) -> NoReturn:
        """End the script because of the request. Raises SystemExit."""
        raise SystemExit(128 + (self._requested or signal.SIGTERM))

    def seconds_left(self, deadline_s: float) -> float | None:
        """Return the seconds left of the time since the request; None if this rank does not know of a request."""
        if self._requested_s is None:
            return None
        return max(0.0, self._requested_s + deadline_s - time.monotonic())

    @property
    def is_requested(self) -> bool:
        """True if this rank got the signal."""
        return self._requested is not None

    def agree(self) -> None:
        """Begin the time for a last checkpoint, if it has not begun: all ranks end after this step."""
        if self._requested_s is None:
            self._requested_s = time.monotonic()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked worker has its parent's handler, but ends at once, as without the session.
            signal.signal(number, self._before.get(number) or signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._requested is None:
            self._requested, self._requested_s = number, time.monotonic()
