"""The progress of a run, on stderr: a live line on a terminal, a line every few seconds elsewhere.

It follows the events of the ledger as they arrive. Notices and the end of an attempt are printed as lines of their
own. Of a script without a session, the output of rank 0 is printed instead of steps.
"""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from m5ws.cli.terminal import output
from m5ws.cli.terminal.log_output import Repeats
from m5ws.cli.terminal.progress import Bar
from m5ws.logs.log_lines import LogReader
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
    from rich.text import Text

_LINE_EVERY_S = 10.0
_SMOOTH = 0.9


class RunProgress(AbstractContextManager["RunProgress"]):
    """Shows the preparation (`prepare` is a `Progress`), then the steps (`watch` takes ledger events).

    `log`: the log of rank 0, whose lines `poll` prints until a session's first step. On a terminal, the last line is
    live: the stage of the attempt and its age, or the step.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        log: Path | None = None,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enabled = enabled
        self._gone = False
        self._observed = False
        self._log = LogReader(log) if enabled and log is not None else None
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._clock = clock
        self._bar = Bar(terminal=False, clock=clock)
        self._stage, self._since_s = "", 0.0
        self._live: Live | None = None
        self._next_s = self._next_bar_s = 0.0
        self._step: Step | None = None
        self._shown: Step | None = None
        self._rates: dict[str, float] = {}
        self._step_s: float | None = None
        self._before_s: float | None = None
        self._repeats = Repeats(clock)

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show the progress of the work before the first step, and after the last."""
        self._try(partial(self._prepare, what, done, total))

    def watch(self, rank: str, event: AnyEvent) -> None:
        """Show one event of the ledger."""
        self._try(partial(self._event, rank, event))

    def poll(self, *, last: bool = False) -> None:
        """Print new lines of the script, with `last` an unfinished line too; of a session, a step that is due."""
        if self._log is not None:
            self._try(partial(self._print_output, self._log, last=last))
        elif not self._terminal and not last:
            self._try(self._print_due)

    def _try(self, show: Callable[[], None]) -> None:
        """Show something. If the terminal or pipe goes away, showing ends and the run continues."""
        if not self._gone:
            try:
                show()
            except OSError:
                self._gone = True

    def _prepare(self, what: str, done: int, total: int) -> None:
        if self._terminal:
            self._begin(f"{what}: {done:,} of {total:,}" if total else what)
        elif self._enabled:
            self._bar(what, done, total)

    def _begin(self, stage: str) -> None:
        """Show a stage on a terminal; an empty stage is the step."""
        if stage != self._stage:
            self._stage, self._since_s = stage, self._clock()
        if self._terminal and self._enabled and self._live is None:
            from rich.console import Console
            from rich.live import Live

            output.end_silence()
            self._live = Live(get_renderable=self._render, console=Console(stderr=True), transient=True)
            self._live.start()

    def _render(self) -> "Text":
        age = output.duration(self._clock() - self._since_s)
        return output.rich_text([f"{self._stage} ({age})" if self._stage else self.line()])

    def _print_output(self, log: LogReader, *, last: bool) -> None:
        lines = log.read(last=last)
        if not lines and self._clock() >= self._next_bar_s and (bar := log.read_bar()) is not None:
            lines = [bar]
        if lines:
            self._next_bar_s = self._clock() + _LINE_EVERY_S
        for line in lines:
            # A progress bar writes its states over each other, and the last state counts.
            output.print_note(next((state for state in reversed(line.split("\r")) if state.strip()), ""))

    def _event(self, rank: str, event: AnyEvent) -> None:
        if (stage := _stage(event)) is not None:
            self._begin(stage)
        match event:
            case Observation():
                self._observed = True
            case Step() if self._observed and self._log is not None:
                if rank == "0":
                    self._begin(f"the script is running, step {event.step:,}")
            case Step():
                # A session's steps are shown, and not the script's output.
                self._log = None
                self._count(rank, event)
                if rank == "0" and self._enabled:
                    self._begin("")
                    if not self._terminal:
                        self._print_due()
            case Notice():
                where = f" (step {event.step})" if event.step is not None else ""
                line = f"{event.kind}{where}: {event.message}"
                if (admitted := self._repeats.admit(line, line.replace(f"step {event.step}", "step"))) is not None:
                    output.warn(admitted)
            case CheckpointPublished() if self._enabled and not self._terminal:
                output.print_note(f"checkpoint {event.name}")
            case AttemptEnded():
                self.close()
            case _:
                pass

    def close(self) -> None:
        """Print the rest of the output, leave the last step on the terminal, and stop."""
        self.poll(last=True)
        if self._live is not None:
            self._begin("")
            self._live.transient = self._step is self._shown
            self._shown = self._step
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

    def __exit__(self, *_error: object) -> None:
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

    def _print_due(self) -> None:
        """Print the newest step if it is not printed and the last line is old: the training may wait after it."""
        if self._enabled and self._step is not self._shown and self._clock() >= self._next_s:
            self._print()

    def _print(self) -> None:
        output.print_note(self.line())
        self._shown = self._step
        self._next_s = self._clock() + _LINE_EVERY_S


def _stage(event: AnyEvent) -> str | None:
    """Return the stage of an attempt that begins with an event."""
    match event:
        case RankStarted():
            return "the script is running, without a step yet"
        case Observation():
            return "the script is running"
        case RankEnded():
            return "waiting for the end of all ranks, and storing results"
        case _:
            return None
