"""Signals that end a long command in the same clean way as Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from m5ws.records.launch import stop_signals


@contextmanager
def on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt, with the signal's name, for each signal that stops a run.

    Schedulers repeat their signals: after the first signal, only Ctrl-C has an effect.
    """
    is_stopped = False

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal is_stopped
        if not is_stopped or number == signal.SIGINT:
            is_stopped = True
            raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
