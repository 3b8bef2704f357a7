"""Saving beside the training: one checkpoint at a time, in a thread, in the order in which they were staged.

The training waits for the copy of its state, and for the checkpoint before if that is still under way. What the
thread does is collective on a group of its own: every rank stages the same checkpoints in the same order.
"""

import logging
import threading
import time
from collections.abc import Callable

from m5ws.errors import M5Error

_log = logging.getLogger(__name__)
THREAD = "m5ws-save"


class TooManyFailures(M5Error):
    """So many checkpoints in a row could not be saved that the training is not to go on."""

    hint = "[checkpoint] failures in m5ws.toml says how many; `m5ws run --resume RUN` goes on from the last saved one."


class Saver:
    """Runs one save at a time. `failures`: how many failed ones in a row end the training; None: no number does."""

    def __init__(self, failures: int | None) -> None:
        self._limit = failures
        self._failed = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, save: Callable[[], bool]) -> None:
        """Start a save in a thread; `settle` first. It returns whether the checkpoint was published."""
        assert not self.busy
        # A daemon: a script that fails is not to hang on a save whose other ranks are gone.
        self._thread = threading.Thread(target=self._run, args=(save,), name=THREAD, daemon=True)
        self._thread.start()

    def run(self, save: Callable[[], bool]) -> bool:
        """Do a save at once, in this thread; `settle` first. Return whether the checkpoint was published."""
        published = save()
        self._failed = 0 if published else self._failed + 1
        return published

    def settle(self, timeout_s: float | None = None) -> float:
        """Wait for the save under way, if any, at most `timeout_s`; return the seconds waited.

        Raises what ended it: Fenced, StateError; TooManyFailures.
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
        except BaseException as error:  # noqa: BLE001  # it is raised again where the training sees it: `settle`
            _log.debug("a save ended", exc_info=True)
            self._error = error
