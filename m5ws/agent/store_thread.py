"""Work on the store in a thread of its own, so that a wait for the store delays neither step lines nor a stop."""

import threading
from collections.abc import Callable

_POLL_S = 0.1


class StoreThread:
    """Repeats `work`, several times a second, from `begin` to `end`. An error ends it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._is_ended = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        # A daemon: Ctrl-C ends m5ws even while the store does not answer.
        self._thread = threading.Thread(target=self._run, name="m5ws-store", daemon=True)
        self._thread.start()

    def raise_error(self) -> None:
        """Raise the error that ended the work."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def end(self) -> None:
        """Wait for the end of the present work, which is the last, and raise its error. May be called again."""
        self._is_ended.set()
        if self._thread is not None:
            self._thread.join()
        self.raise_error()

    def _run(self) -> None:
        try:
            while not self._is_ended.wait(_POLL_S):
                self._work()
        except BaseException as error:  # noqa: BLE001  # `raise_error` raises it in the thread of the supervisor
            self._error = error
