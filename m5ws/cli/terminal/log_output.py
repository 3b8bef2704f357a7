"""Log lines on stderr. Equal warnings are printed at growing intervals, whichever part of m5ws they come from."""

import logging
import re
import time
from collections.abc import Callable
from functools import partial

import msgspec

from m5ws.cli.terminal import output
from m5ws.waits import waits

_FIRST_S = 10.0
"""The interval between equal warnings; it doubles with each."""
_DIGEST = re.compile(r"(?:[0-9a-f]{2}/)?[0-9a-f]{64}")


class _Repeated(msgspec.Struct):
    """A warning that was printed: when, the interval until it is printed again, and the number of its repetitions."""

    printed_s: float
    interval_s: float = _FIRST_S
    hidden: int = 0


class Repeats:
    """The warnings of a command, or of a run. Texts are equal if they differ in digests alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Repeated] = {}

    def admit(self, text: str, key: str | None = None) -> str | None:
        """Return a text to print, with the number of its repetitions; None if an equal text was printed recently.

        Texts with one `key` are equal.
        """
        name, now_s = _DIGEST.sub("#", text if key is None else key), self._clock()
        known = self._known.get(name)
        if known is None:
            self._known[name] = _Repeated(now_s)
            return text
        if now_s - known.printed_s < known.interval_s:
            known.hidden += 1
            return None
        self._known[name] = _Repeated(now_s, known.interval_s * 2)
        return f"{text} ({known.hidden} more since the last such line)" if known.hidden else text


def begin(level: int) -> Callable[[], None]:
    """Print log lines from a level on, and outages of stores. Return the function that ends the lines on outages."""
    logging.basicConfig(level=level, format="%(message)s", handlers=[LogHandler()], force=True)
    waits.report(logging.getLogger(__name__).warning)
    return partial(waits.report, None)


class LogHandler(logging.Handler):
    """Prints records with their level, and warnings as `Repeats` admits them."""

    def __init__(self) -> None:
        super().__init__()
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        line: str | None = f"{record.levelname.lower()}: {self.format(record)}"
        if record.levelno == logging.WARNING:
            line = self._repeats.admit(line or "")
        try:
            if line is not None:
                output.warn(line)
        except OSError:
            self.handleError(record)
