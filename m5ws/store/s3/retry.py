"""Retries and rate limit of requests. No other module of the store retries.

Pauses have full jitter, a random share of a doubling limit, so that clients that failed together do not return together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Retries end when a time budget is spent.
The number of requests in flight adapts as in TCP: it grows by one after each successful round, and is halved after
SlowDown.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from m5ws.store.s3.errors import StoreFailing, StoreUnreachable, TransientError

_log = logging.getLogger(__name__)
# Not the global generator: retries must not change the random numbers of a training.
_DRAW = random.SystemRandom()
T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request is retried: pauses up to `first_s`, doubling up to `longest_s`, until `budget_s` is spent.

    `contact_s` is the budget until the first response, so that a wrong address is reported soon.
    """

    budget_s: float = 180.0
    contact_s: float = 10.0
    first_s: float = 0.1
    longest_s: float = 5.0


class AdaptiveLimiter:
    """Limit for requests in flight, over all threads: additive increase, multiplicative decrease."""

    def __init__(self, most: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._allowed = float(most)
        self._in_flight = 0
        self._cut_s = float("-inf")
        self._changed = threading.Condition()

    @property
    def allowed(self) -> int:
        """How many requests may be in flight now."""
        return max(1, int(self._allowed))

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait until one more request may be in flight. A thread must not enter twice."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight < self.allowed)
            self._in_flight += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify()

    def on_success(self) -> None:
        """Count a successful request."""
        with self._changed:
            self._allowed = min(self._most, self._allowed + 1 / self._allowed)
            self._changed.notify()

    def on_throttle(self) -> None:
        """Halve the limit, at most once a second: requests in flight together get the same response."""
        with self._changed:
            if self._clock() - self._cut_s >= 1.0:
                self._allowed = max(1.0, self._allowed / 2)
                self._cut_s = self._clock()


class Retrier:
    """Retries requests of one store until they succeed, fail for good, or spend their budget."""

    def __init__(
        self, url: str, patience: RetryPolicy, renew: Callable[[], None], limiter: AdaptiveLimiter | None = None
    ) -> None:
        self._url = url
        self._patience = patience
        self._renew = renew
        self.limiter = limiter or AdaptiveLimiter()
        self._answered = False

    def call(self, what: str, attempt: Callable[[int], T]) -> T:
        """Return the result of `attempt`. It gets its number, from 0, and is called again if it raises
        `TransientError`.

        Raises StoreFailing or StoreUnreachable when the budget is spent, and any other error of `attempt` at once.
        """
        began_s, number = time.monotonic(), 0
        while True:
            try:
                with self.limiter.slot():
                    result = attempt(number)
            except TransientError as trouble:
                self._wait(what, trouble, number, began_s)
                number += 1
            else:
                self._answered = True
                self.limiter.on_success()
                return result

    def _wait(self, what: str, trouble: TransientError, number: int, began_s: float) -> None:
        """Pause before the next attempt. Raises if there is none."""
        _log.info("%s: attempt %d of %s: %s", self._url, number + 1, what, trouble)
        self._answered = self._answered or not (trouble.unreachable or trouble.unknown)
        if trouble.slow:
            self.limiter.on_throttle()
        if trouble.expired:
            self._renew()
        limit_s = min(self._patience.longest_s, self._patience.first_s * 2.0**number)
        pause_s = _DRAW.uniform(0.0, limit_s)
        budget_s = self._patience.budget_s if self._answered else self._patience.contact_s
        # A cause that is still unknown gets one more attempt, by boto3: an error without a cause is useless.
        if not trouble.unknown and time.monotonic() + pause_s - began_s > budget_s:
            raise self._given_up(what, trouble, number + 1, budget_s) from trouble
        time.sleep(pause_s)

    def _given_up(
        self, what: str, trouble: TransientError, attempts: int, budget_s: float
    ) -> StoreFailing | StoreUnreachable:
        attempted = f"{attempts} attempts in {budget_s:.0f} s"
        if trouble.unreachable:
            return StoreUnreachable(f"no response from {self._url} ({attempted}): {trouble}")
        return StoreFailing(f"{what} on {self._url} failed, {attempted}: {trouble}")
