"""A request to end (SIGTERM, SIGINT), turned into one step at whose end all ranks stop.

The ranks get the signal at different moments, but one that has not ended step n cannot let another end step
n+1, whose collectives need it. So the first to notice, after its step n, names n+1, and nobody has passed it.
It is named by a symbolic link: made at once with its content, by one rank only, read in a microsecond.
"""

import contextlib
import os
import signal
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """A rank's view of the request. `in_steps` says whether a session will look at it."""

    def __init__(self, path: Path, world: int) -> None:
        self._path = path
        self._ahead = 1 if world > 1 else 0
        self._pid = os.getpid()
        self._requested: int | None = None
        self.in_steps = False

    def install(self) -> None:
        """Take the signals; in the main thread."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    @property
    def exit_code(self) -> int:
        """The exit status of a process that the request ended."""
        return 128 + (self._requested or signal.SIGTERM)

    def due(self, step: int) -> bool:
        """Return whether all ranks end after `step`, which this rank has just done."""
        if self._requested is not None:
            with contextlib.suppress(FileExistsError):
                os.symlink(str(step + self._ahead), self._path)
        try:
            return step >= int(os.readlink(self._path))
        except FileNotFoundError:
            return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A worker that was forked off has its parent's handler, but is to end at once.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self.in_steps and self._requested is None:
            self._requested = number
        else:
            self._requested = number
            raise SystemExit(self.exit_code)
