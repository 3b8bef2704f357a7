"""Progress of long work, on stderr: a bar on a terminal, a line from time to time elsewhere.

Short work prints nothing. On a terminal, work that is named once is shown after a moment, however long it then takes.
The bar's library is imported only when the work takes long.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from m5ws.cli.terminal import output
from m5ws.control_characters import escaped

_PATIENCE_S = 0.7
_LINE_EVERY_S = 10.0


def start_timer(delay_s: float, function: Callable[[], None]) -> None:
    """Call a function after some seconds, unless this process ends before."""
    timer = threading.Timer(delay_s, function)
    timer.daemon = True
    timer.start()


def name_silence(what: str, *, terminal: bool | None = None) -> None:
    """Show a command's work until the command prints, or shows other progress, if that takes long."""
    bar = Bar(terminal=terminal)
    bar(what, 0, 0)
    output.before_output(bar.close)


class Bar(AbstractContextManager["Bar"]):
    """A `Progress` with `close`. On a terminal, the line is erased at the end. Threads may share a bar."""

    def __init__(self, *, terminal: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._clock = clock
        self._next_s = clock() + (_PATIENCE_S if self._terminal else _LINE_EVERY_S)
        self._lock = threading.RLock()
        self._hidden: tuple[str, int, int] | None = None
        self._is_waiting = False
        self._display: _Display | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done. A total of 0 means unknown."""
        output.end_silence()
        with self._lock:
            if self._display is not None:
                self._display.update(what, done, total)
            elif self._terminal:
                self._hidden = (what, done, total)
                self._show_in_time()
            elif self._clock() >= self._next_s:
                counted = f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""
                output.print_note(f"{what}{counted}")
                self._next_s = self._clock() + _LINE_EVERY_S

    def close(self) -> None:
        """Erase the bar."""
        with self._lock:
            self._hidden = None
            if self._terminal:
                self._next_s = self._clock() + _PATIENCE_S
            if self._display is not None:
                self._display.close()
                self._display = None

    def _show_in_time(self) -> None:
        """Show the hidden work now if it has taken long, else later."""
        left_s = self._next_s - self._clock()
        if left_s > 0:
            if not self._is_waiting:
                self._is_waiting = True
                start_timer(left_s, self._wake)
        elif self._hidden is not None:
            self._display = _Display()
            self._display.update(*self._hidden)
            self._hidden = None

    def _wake(self) -> None:
        with self._lock, suppress(OSError):  # The terminal may have gone away.
            self._is_waiting = False
            if self._hidden is not None:
                self._show_in_time()

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Display:
    """A display of `rich` with one bar for each kind of work."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, object] = {}
        self._uncounted: str | None = None
        self._progress.start()

    def update(self, what: str, done: int, total: int) -> None:
        if self._uncounted not in (None, what):
            # Work without a count has ended when other work begins.
            self._progress.remove_task(self._tasks.pop(self._uncounted))  # type: ignore[arg-type]
        self._uncounted = what if not total else None
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(escaped(what), total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

    def close(self) -> None:
        self._progress.stop()
