"""Progress of long work, on stderr: a bar on a terminal, a line from time to time elsewhere.

Short work prints nothing. The bar's library is imported only when the work takes long.
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from m5ws.cli.terminal import output
from m5ws.control_characters import escaped

_PATIENCE_S = 0.7
_LINE_EVERY_S = 10.0


class Bar:
    """A `Progress` with `close`. On a terminal, the line is erased at the end."""

    def __init__(self, *, terminal: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._clock = clock
        self._next_s = clock() + (_PATIENCE_S if self._terminal else _LINE_EVERY_S)
        self._display: _Display | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` is done. A total of 0 means unknown."""
        if self._display is not None:
            self._display.update(what, done, total)
        elif self._clock() >= self._next_s:
            if self._terminal:
                self._display = _Display()
                self._display.update(what, done, total)
            else:
                counted = f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""
                output.print_note(f"{what}{counted}")
                self._next_s = self._clock() + _LINE_EVERY_S

    def close(self) -> None:
        """Erase the bar."""
        if self._display is not None:
            self._display.close()
            self._display = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Display:
    """A display of `rich` with one bar for each kind of work."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._tasks: dict[str, object] = {}
        self._progress.start()

    def update(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(escaped(what), total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)  # type: ignore[arg-type]

    def close(self) -> None:
        self._progress.stop()
