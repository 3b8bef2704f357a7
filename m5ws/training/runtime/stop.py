"""A request to end (a signal of `STOP_SIGNALS`), as one step after which all ranks of a session stop.

The ranks get the signal at different moments. A rank that has not ended step n stops others from ending step n+1, whose
collectives need it. So the first rank to notice, after its step n, names n+1, and no rank has passed that step. The
name is a symbolic link: created atomically with its content, by one rank only, and read in a microsecond.

Only a session handles signals, from its begin to its end, and its handler does nothing but record the first signal.
Before and after, and in scripts without a session, Python's own handlers stay.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from m5ws.records.launch import stop_signals


class StopMarker:
    """A step that all ranks agree on. The first call of `name` sets it, and all ranks read it at that step's end."""

    def __init__(self, path: Path, world: int) -> None:
        self._path = path
        self._ahead = 1 if world > 1 else 0

    def name(self, step: int) -> None:
        """Name the step after `step`, which this rank has just done; with one rank, `step` itself."""
        with contextlib.suppress(FileExistsError):
            os.symlink(str(step + self._ahead), self._path)

    def is_reached(self, step: int) -> bool:
        """Return True if a step was named, and `step` is the named step or later."""
        try:
            return step >= int(os.readlink(self._path))
        except FileNotFoundError:
            return False


class StopRequest:
    """A rank's view of the request. The launcher reads in a file of the rank whether its session handles signals."""

    def __init__(self, path: Path, world: int) -> None:
        self._mark = StopMarker(path, world)
        self._pid = os.getpid()
        self._file = path.with_name("processes") / str(self._pid)
        self._before: dict[int, Any] = {}
        self._requested: int | None = None
        self._requested_s = 0.0

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
        """Return the seconds left of the time since the request; None if there was no request on this rank."""
        if self._requested is None:
            return None
        return max(0.0, self._requested_s + deadline_s - time.monotonic())

    def is_due(self, step: int) -> bool:
        """Return True if all ranks end after `step`, which this rank has just done."""
        if self._requested is not None:
            self._mark.name(step)
        return self._mark.is_reached(step)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked worker has its parent's handler, but ends at once, as without the session.
            signal.signal(number, self._before.get(number) or signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._requested is None:
            self._requested, self._requested_s = number, time.monotonic()
