"""Waits for stores: a wait beyond ten seconds is reported once when it is noticed, with its cause, and once at its end.

Every request to a store is made in a `Wait`. A request that ends without an answer leaves the outage open, until a
request of its kind (`reading`, `writing` …) is answered. Nothing is reported before `report` is called, as the command
line does: ranks and followers of a run wait for the same store.
"""

import threading
import time
from collections.abc import Callable
from typing import Self

LIMIT_S = 10.0
_FLOOR_BYTES_PER_S = 2**20
"""A transfer gets more time, by its size. A slow network is no outage."""
_POLL_S = 1.0
Tell = Callable[[str], None]
"""Called with a line for people, in another thread."""


class Waits:
    """The waits of a process. Safe in several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, Wait] = {}
        self._tell: Tell | None = None
        self._watcher: threading.Thread | None = None
        self._outage: Wait | None = None

    def report(self, tell: Tell | None) -> None:
        """Report outages from now on; with None, none."""
        self._tell, self._outage = tell, None

    @property
    def is_away(self) -> bool:
        """True if an outage was reported, and its end was not."""
        return self._outage is not None

    def wait(self, store: str, action: str, size_bytes: int = 0) -> "Wait":
        """Return the wait for a request: `action` is a verb and a key, `size_bytes` the size of its transfer."""
        return Wait(self, store.partition("?")[0], action, self._clock(), size_bytes / _FLOOR_BYTES_PER_S)

    def begin(self, wait: "Wait") -> None:
        """Take in a wait. Without a lock, for a request of microseconds: each call is one operation on a `dict`."""
        self._waiting[id(wait)] = wait
        if self._tell is not None and (self._watcher is None or not self._watcher.is_alive()):
            self._watcher = threading.Thread(target=self._watch, name="m5ws-waits", daemon=True)
            self._watcher.start()

    def end(self, wait: "Wait") -> None:
        """Take out a wait. Report the end of an outage."""
        del self._waiting[id(wait)]
        if self._outage is not None:
            self._end_outage(wait, self._clock())

    def check(self) -> None:
        """Report an outage that has begun."""
        now_s = self._clock()
        with self._lock:
            late = next((wait for wait in list(self._waiting.values()) if wait.is_late(now_s)), None)
            if self._outage is not None or late is None or self._tell is None:
                return
            self._outage = late
            cause = late.problem or "no response yet"
            self._tell(
                f"the store {late.store} has not answered for {now_s - late.began_s:.0f} s ({late.action}): {cause}; "
                "m5ws tries again, and reports the end of the outage"
            )

    def _end_outage(self, wait: "Wait", now_s: float) -> None:
        with self._lock:
            outage = self._outage
            if outage is None or not wait.is_answered or (wait.store, wait.kind) != (outage.store, outage.kind):
                return
            if self._tell is not None and not any(other.is_late(now_s) for other in list(self._waiting.values())):
                self._outage = None
                self._tell(f"the store {outage.store} answers again, after {now_s - outage.began_s:.0f} s")

    def _watch(self) -> None:
        while self._tell is not None:
            time.sleep(_POLL_S)
            self.check()


class Wait:
    """One request, as a context. `problem` is the error of its last attempt; it is answered unless that is denied."""

    def __init__(self, waits: Waits, store: str, action: str, began_s: float, transfer_s: float) -> None:
        self._waits, self._limit_s = waits, LIMIT_S + transfer_s
        self.store, self.action, self.began_s = store, action, began_s
        self.problem: str | None = None
        self.is_answered = True

    @property
    def kind(self) -> str:
        return self.action.partition(" ")[0]

    def is_late(self, now_s: float) -> bool:
        """Return True if the wait is beyond its limit. After a failed attempt, the size of a transfer is no excuse."""
        return now_s - self.began_s > (self._limit_s if self.problem is None else LIMIT_S)

    def __enter__(self) -> Self:
        self._waits.begin(self)
        return self

    def __exit__(self, *_error: object) -> None:
        self._waits.end(self)


waits = Waits()
"""The waits of this process."""
