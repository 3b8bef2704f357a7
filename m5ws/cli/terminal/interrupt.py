"""Signals that ask a long verb to end, as what Ctrl-C is: so that a run is always ended in the one clean way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ASK = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@contextmanager
def on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM, SIGHUP (a terminal that was closed) and SIGUSR2 (a time limit) too."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ASK}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
