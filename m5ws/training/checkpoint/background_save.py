"""Saves in parallel to the training: one checkpoint at a time, in a thread, in the order of staging.

The training waits for the copy of its state, and for the previous checkpoint if its save is not over. The thread's
collectives use a group of its own: every rank stages the same checkpoints in the same order.
"""

import logging
import threading
import time
from collections.abc import Callable

from m5ws.errors import M5Error

_log = logging.getLogger(__name__)
THREAD = "m5ws-save"


class TooManyFailures(M5Error):
    """Too many checkpoints in a row could not be saved."""

    hint = (
        "[checkpoint] failures in m5ws.toml sets the limit. `m5ws resume RUN` continues from the last saved checkpoint."
    )


class Saver:
    """Runs one save at a time. `failures`: limit of failed saves in a row; None: no limit."""

    def __init__(self, failures: int | None) -> None:
        self._limit = failures
        self._failed = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """True while a save is running."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, save: Callable[[], bool]) -> None:
        """Start a save in a thread; call `join` first. `save` returns True if the checkpoint was published."""
        assert not self.busy
        # A daemon: a failing script must not hang on a save whose other ranks are gone.
        self._thread = threading.Thread(target=self._run, args=(save,), name=THREAD, daemon=True)
        self._thread.start()

    def run(self, save: Callable[[], bool]) -> bool:
        """Save at once, in this thread; call `join` first. Return True if the checkpoint was published."""
        published = save()
        self._failed = 0 if published else self._failed + 1
        return published

    def join(self, timeout_s: float | None = None) -> float:
        """Wait for the running save, if any, at most `timeout_s`; return the seconds waited.

        Raises the error that ended the save: Fenced, StateError; TooManyFailures.
        """
        began_s = time.perf_counter()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._thread = None
        waited_s = time.perf_counter() - began_s
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._limit is not None and self._failed >= self._limit:
            raise TooManyFailures(f"{self._failed} checkpoints in a row could not be saved")
        return waited_s

    def _run(self, save: Callable[[], bool]) -> None:
        try:
            self.run(save)
        except BaseException as error:  # noqa: BLE001  # `join` raises it in the training's thread
            _log.debug("a save ended", exc_info=True)
            self._error = error
