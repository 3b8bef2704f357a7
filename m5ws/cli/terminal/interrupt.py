"""Signals that end a long command in the same clean way as Ctrl-C."""

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
