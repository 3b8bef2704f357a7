"""Retries of requests, and the limit of requests in flight. No other module of the store retries.

A request with its retries is one wait (`m5ws.waits`).

Pauses have full jitter, a random share of a doubling limit, so that clients that failed together do not return together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Retries end when a time budget is spent.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from m5ws.store.s3.errors import NoCredentials, StoreError, StoreFailing, StoreUnreachable, TransientError
from m5ws.waits import Wait, waits

_log = logging.getLogger(__name__)
# Not the global generator: retries must not change the random numbers of a training.
_DRAW = random.SystemRandom()
_IN_FLIGHT = 64
"""Requests of one store at a time, over all threads."""
T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request is retried: pauses up to `first_s`, doubling up to `longest_s`, until `budget_s` is spent.

    `contact_s` is the budget until the first response, so that a wrong address is reported soon.
    """

    budget_s: float = 180.0
    contact_s: float = 10.0
    first_s: float = 0.1
    longest_s: float = 5.0


class Retrier:
    """Retries requests of one store until they succeed, fail for good, or spend their budget.

    `renew` discards credentials that the server refused. It returns False if their source has no others. They are then
    refused here, without a request, until the source has others.
    """

    def __init__(self, url: str, patience: RetryPolicy, renew: Callable[[], bool]) -> None:
        self._url = url
        self._patience = patience
        self._renew = renew
        self._slots = threading.BoundedSemaphore(_IN_FLIGHT)
        self._answered = False
        self._refusal: StoreError | None = None

    def call(self, what: str, attempt: Callable[[int], T], size_bytes: int = 0) -> T:
        """Return the result of `attempt`. It gets its number, from 0, and is called again if it raises
        `TransientError`. `size_bytes` is the size of its transfer.

        Raises StoreFailing, StoreUnreachable or NoCredentials when the budget is spent, NoCredentials at once if there
        are no others, and any other error of `attempt` at once.
        """
        if self._refusal is not None and not self._renew():
            raise NoCredentials(str(self._refusal))
        self._refusal = None
        began_s, number = time.monotonic(), 0
        with waits.wait(self._url, what, size_bytes) as wait:
            while True:
                try:
                    with self._slots:
                        result = attempt(number)
                except TransientError as trouble:
                    wait.problem = str(trouble)
                    self._pause(wait, trouble, number, began_s)
                    number += 1
                else:
                    self._answered = True
                    return result

    def _pause(self, wait: Wait, trouble: TransientError, number: int, began_s: float) -> None:
        """Pause before the next attempt. Raises if there is none."""
        what = wait.action
        _log.info("%s: attempt %d of %s: %s", self._url, number + 1, what, trouble)
        self._answered = self._answered or not (trouble.unreachable or trouble.unknown)
        if trouble.expired is not False and not self._renew() and trouble.expired:
            self._refusal = self._given_up(what, trouble, f"attempt {number + 1}")
            raise self._refusal from trouble
        limit_s = min(self._patience.longest_s, self._patience.first_s * 2.0**number)
        pause_s = _DRAW.uniform(0.0, limit_s)
        budget_s = self._patience.budget_s if self._answered else self._patience.contact_s
        # A cause that is still unknown gets one more attempt, by boto3: an error without a cause is useless.
        if not trouble.unknown and time.monotonic() + pause_s - began_s > budget_s:
            wait.is_answered = False
            raise self._given_up(what, trouble, f"{number + 1} attempts in {budget_s:.0f} s") from trouble
        time.sleep(pause_s)

    def _given_up(self, what: str, trouble: TransientError, attempted: str) -> StoreError:
        """Return the error for the class of the last answer."""
        if trouble.expired:
            return NoCredentials(f"the server refuses the credentials for {self._url} ({attempted}): {trouble}")
        if trouble.unreachable:
            return StoreUnreachable(f"no response from {self._url} ({attempted}): {trouble}")
        return StoreFailing(f"{what} on {self._url} failed, {attempted}: {trouble}")
