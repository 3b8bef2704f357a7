"""The progress of a run, on stderr: a live line on a terminal, a line every few seconds elsewhere.

It follows the events of the ledger as they arrive. Notices and the end of an attempt are printed as lines of their
own. Of a script without a session, the output of rank 0 is printed instead of steps.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from m5ws.cli.terminal import output
from m5ws.cli.terminal.log_lines import LogReader
from m5ws.cli.terminal.progress import Bar, Later, start_timer
from m5ws.control_characters import escaped
from m5ws.records.ledger import (
    AnyEvent,
    AttemptEnded,
    CheckpointPublished,
    Notice,
    Observation,
    RankEnded,
    RankStarted,
    Step,
)

if TYPE_CHECKING:
    from rich.live import Live

_LINE_EVERY_S = 10.0
_SMOOTH = 0.9
_WAITING_S = 3.0
"""Time without a word on a terminal after which the stage of the attempt is shown."""


class RunProgress:
    """Shows the preparation (`prepare` is a `Progress`), then the steps (`watch` takes ledger events).

    `log`: the log of rank 0, whose lines `poll` prints until a session's first step.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        log: Path | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: Later = start_timer,
    ) -> None:
        self._enabled = enabled
        self._gone = False
        self._observed = False
        self._log = LogReader(log) if enabled and log is not None else None
        self._next_bar_s = 0.0
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._clock = clock
        self._bar = Bar(terminal=self._terminal, clock=clock, later=later)
        self._waiting = Bar(terminal=self._terminal, clock=clock, patience_s=_WAITING_S, later=later)
        self._stage, self._done = "", 0
        self._live: Live | None = None
        self._next_s = 0.0
        self._step: Step | None = None
        self._shown: Step | None = None
        self._rates: dict[str, float] = {}
        self._step_s: float | None = None
        self._before_s: float | None = None
        self._noticed: set[tuple[str, str, int | None]] = set()

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show the progress of the work before the first step, and after the last."""
        if not self._enabled or self._gone:
            return
        self._waiting.close()
        self._stage, self._done = what, 0
        try:
            self._bar(what, done, total)
        except OSError:
            self._gone = True

    def watch(self, rank: str, event: AnyEvent) -> None:
        """Show one event of the ledger. If the terminal or pipe goes away, showing ends and the run continues."""
        if self._gone:
            return
        try:
            self._event(rank, event)
        except OSError:
            self._gone = True

    def poll(self, *, last: bool = False) -> None:
        """Print new lines of the script; with `last`, an unfinished one too. An absent terminal ends showing."""
        if self._gone or self._log is None:
            return
        try:
            self._print_output(self._log, last=last)
        except OSError:
            self._gone = True

    def _print_output(self, log: LogReader, *, last: bool) -> None:
        lines = log.read(last=last)
        if not lines and self._clock() >= self._next_bar_s and (bar := log.read_bar()) is not None:
            lines = [bar]
        if lines:
            self._hush()
            self._next_bar_s = self._clock() + _LINE_EVERY_S
        for line in lines:
            # A progress bar writes its states over each other, and the last one counts.
            output.print_note(next((state for state in reversed(line.split("\r")) if state.strip()), ""))
        if lines and not last:
            self._wait()

    def _hush(self) -> None:
        """Erase the stage that is shown, before a line is printed."""
        self._bar.close()
        self._waiting.close()

    def _wait(self) -> None:
        """Show the stage of the attempt if nothing else is shown for some seconds. Only a terminal shows it."""
        if self._terminal and self._enabled and self._live is None and self._stage:
            self._waiting(self._stage, self._done, 0)

    def _event(self, rank: str, event: AnyEvent) -> None:
        if isinstance(event, Step) and self._observed and self._log is not None:
            # It prints nothing, so the stage stays, and is shown in time.
            if rank == "0":
                self._stage, self._done = "the script is running, step", event.step
                self._bar.close()
                self._wait()
            return
        self._hush()
        if (stage := _stage(event)) is not None:
            self._stage, self._done = stage, 0
        self._show_event(rank, event)
        if not isinstance(event, AttemptEnded):
            self._wait()

    def _show_event(self, rank: str, event: AnyEvent) -> None:
        match event:
            case Observation():
                self._observed = True
            case Step():
                # A session's steps are shown, and not the script's output.
                self._log = None
                self._count(rank, event)
                if rank == "0" and self._enabled:
                    self._show()
            case Notice() if (event.kind, event.message, event.step) in self._noticed:
                pass  # Each rank has the same one.
            case Notice():
                self._noticed.add((event.kind, event.message, event.step))
                where = f" (step {event.step})" if event.step is not None else ""
                self._say(f"{event.kind}{where}: {event.message}", output.warn)
            case CheckpointPublished() if self._enabled and not self._terminal:
                self._say(f"checkpoint {event.name}")
            case AttemptEnded():
                self.close()
            case _:
                pass

    def close(self) -> None:
        """Print the rest of the output, leave the last line on the terminal, and stop."""
        self._hush()
        self._stage = ""
        self.poll(last=True)
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._enabled and self._step is not self._shown:
            self._print()

    def line(self) -> str:
        """Return the state of the run: step, loss, tokens a second of all ranks, time left."""
        step = self._step
        if step is None:
            return "starting"
        parts = [f"step {step.step}/{step.total}" if step.total else f"step {step.step}"]
        if "loss" in step.quantities:
            parts.append(f"loss {output.number(step.quantities['loss'])}")
        if self._rates:
            parts.append(f"{sum(self._rates.values()):,.0f} tokens/s")
        if step.total and self._step_s is not None and step.step < step.total:
            parts.append(f"{output.duration((step.total - step.step) * self._step_s)} left")
        return "  ".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, rank: str, step: Step) -> None:
        if step.tokens and step.seconds > 0:
            self._rates[rank] = step.tokens / step.seconds
        if rank != "0":
            return
        if self._before_s is not None and step.time_s > self._before_s:
            took = step.time_s - self._before_s
            self._step_s = took if self._step_s is None else _SMOOTH * self._step_s + (1 - _SMOOTH) * took
        self._before_s = step.time_s
        self._step = step

    def _show(self) -> None:
        if self._terminal:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            if self._live is None:
                self._live = Live(console=Console(stderr=True), refresh_per_second=8)
                self._live.start()
            self._live.update(Text(escaped(self.line())))
            self._shown = self._step
        elif self._clock() >= self._next_s:
            self._print()

    def _print(self) -> None:
        output.print_note(self.line())
        self._shown = self._step
        self._next_s = self._clock() + _LINE_EVERY_S

    def _say(self, text: str, otherwise: Callable[[str], None] = output.print_note) -> None:
        if self._live is not None:
            self._live.console.print(escaped(text), markup=False, highlight=False)
        else:
            otherwise(text)


def _stage(event: AnyEvent) -> str | None:
    """Return the stage of an attempt that begins with an event."""
    match event:
        case RankStarted():
            return "the script is running, without a step yet"
        case Step() | Observation():
            return "the script is running"
        case RankEnded():
            return "waiting for the end of all ranks, and storing results"
        case _:
            return None
