"""Faults of requests, drawn from a seed: the n-th request has the same fault in every campaign."""

import random

import msgspec

KINDS = {
    "reset_before": "the connection is reset before the request reaches the server",
    "reset_after": "the server has answered, the connection is reset, and the response is lost",
    "truncated_response": "the connection ends in the middle of the response",
    "truncated_request": "the connection is cut in the middle of the request, on both sides",
    "corrupt_response": "one bit of the response's body is flipped",
    "corrupt_request": "one bit of the request's body is flipped",
    "stall": "the response stops in the middle",
    "stall_upload": "the upload stops in the middle: nothing more is taken from the client",
    "drip": "the response comes slowly",
    "http_500": "500 InternalError instead of an answer of the server",
    "slow_down": "503 SlowDown instead of an answer of the server",
    "request_timeout": "400 RequestTimeout instead of an answer of the server",
}

REFUSALS = {
    "denied": "403 AccessDenied instead of an answer of the server",
    "full": "403 QuotaExceeded instead of a response, to requests would store something",
}
"""A refusal is no transport failure, and no client retries it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates by kind, in faults per request. Without rates there are no faults."""

    rates: dict[str, float] = {}
    seed: int = 0
    stall_s: float = 30.0
    drip_bytes_s: int = 1024

    def __post_init__(self) -> None:
        known = KINDS | REFUSALS
        unknown = self.rates.keys() - known.keys()
        if unknown or sum(self.rates.values()) > 1 + 1e-9 or min(self.rates.values(), default=0) < 0:
            raise ValueError(f"rates are of {', '.join(known)}, and at most 1 together: {self.rates}")


class Fault(msgspec.Struct, frozen=True):
    """A fault of one request. `at`, in [0, 1), is its position in the message."""

    kind: str
    at: float


class Counters(msgspec.Struct):
    """Counters since the last change of settings.

    `pointless` counts faults without an effect, such as a bit flip without a body.
    """

    requests: int = 0
    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    upstream_errors: int = 0
    methods: dict[str, int] = {}
    injected: dict[str, int] = {}
    pointless: dict[str, int] = {}


class Plan:
    """Draws each request's fault, and counts."""

    def __init__(self, settings: Settings) -> None:
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Start with new rates, from a seed, with counters at zero."""
        self.settings = settings
        self.counters = Counters()
        self._random = random.Random(settings.seed)

    def draw(self, method: str) -> Fault | None:
        """Return the fault of the next request, or None."""
        self.counters.requests += 1
        count(self.counters.methods, method)
        kind_at, at = self._random.random(), self._random.random()
        for kind, rate in self.settings.rates.items():
            if kind_at < rate:
                return None if kind == "full" and method != "PUT" else Fault(kind, at)
            kind_at -= rate
        return None


def count(counters: dict[str, int], name: str) -> None:
    """Increment a counter."""
    counters[name] = counters.get(name, 0) + 1
