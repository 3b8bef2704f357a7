"""A request to end (SIGTERM, SIGINT, SIGUSR2), as one step after which all ranks stop.

The ranks get the signal at different moments. A rank that has not ended step n stops others from ending step n+1, whose
collectives need it. So the first rank to notice, after its step n, names n+1, and no rank has passed that step. The
name is a symbolic link: created atomically with its content, by one rank only, and read in a microsecond.

A rank may get several signals: from the scheduler, then from torchrun when another rank has ended. One of them ends the
script, by SystemExit, or by KeyboardInterrupt for SIGINT in a script without a session, which may save its state then.
None interrupts the recording of an event.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


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
        """Return True if a step was named, and `step` is that one or later."""
        try:
            return step >= int(os.readlink(self._path))
        except FileNotFoundError:
            return False


class StopRequest:
    """A rank's view of the request. `in_steps` is true while a session checks it after each step."""

    def __init__(self, path: Path, world: int) -> None:
        self._mark = StopMarker(path, world)
        self._pid = os.getpid()
        self._requested: int | None = None
        self._requested_s = 0.0
        self._ended = False
        self._deferring = 0
        self._deferred = False
        self.in_steps = False

    def install(self) -> None:
        """Install the signal handlers; in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal end the script only after the block. Signal handlers run in the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1
        if self._deferred:
            self._deferred = False
            self._end_once()

    def end(self) -> NoReturn:
        """End the script because of the request. Raises SystemExit."""
        self._ended = True
        raise SystemExit(self.exit_code)

    def ignore(self) -> None:
        """Ignore all signals from now on: the script has ended."""
        self._ended = True

    def _end_once(self) -> None:
        if self._deferring:
            self._deferred = True
        elif not self._ended and self._requested == signal.SIGINT:
            self._ended = True
            raise KeyboardInterrupt
        elif not self._ended:
            self.end()

    @property
    def is_requested(self) -> bool:
        """Whether this rank got a signal."""
        return self._requested is not None

    @property
    def exit_code(self) -> int:
        """The exit status of a process that the request ended."""
        return 128 + (self._requested or signal.SIGTERM)

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
            # A forked worker has its parent's handler, but must end at once: by SIGINT as torch's loaders expect it.
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._requested is None:
            self._requested, self._requested_s = number, time.monotonic()
        if not self.in_steps:
            # During the steps, the session ends the script, after the save.
            self._end_once()
