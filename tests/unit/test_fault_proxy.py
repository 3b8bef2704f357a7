"""A plain client sees each fault of the fault proxy as that fault. Without faults, a proxy changes no byte."""

import http.client
import time
from collections.abc import Iterator

import pytest

from tests.support.network.fault_plan import KINDS, Plan, Settings
from tests.support.network.proxies import DelayLine, FaultProxy
from tests.support.network.trivial_server import TrivialServer, content

pytestmark = pytest.mark.soak

BODY = content(50_000)


@pytest.fixture
def server() -> Iterator[TrivialServer]:
    with TrivialServer() as running:
        yield running


@pytest.fixture
def proxy(server: TrivialServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as running:
        yield running


def _ask(port: int, method: str, path: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    connection.request(method, path, body=data)
    response = connection.getresponse()
    return response.status, response.read()


def test_each_byte_passes_without_faults(server: TrivialServer, proxy: FaultProxy) -> None:
    asked = [("PUT", "/key", BODY), ("GET", "/50000", None), ("GET", "/chunked/50000", None), ("HEAD", "/17", None)]
    assert [_ask(proxy.port, *each) for each in asked] == [(200, b""), (200, BODY), (200, BODY), (200, b"")]
    assert server.requests == [(method, path, data or b"") for method, path, data in asked]
    # A signature covers the host: the server must get the one that the client has signed.
    assert server.hosts == {f"127.0.0.1:{proxy.port}"}
    assert (proxy.counters.requests, proxy.counters.injected, proxy.counters.bytes_up) == (4, {}, 50_000)
    proxy.change(Settings(rates={"drip": 1.0}, drip_bytes_s=10**6))
    assert (_ask(proxy.port, "GET", "/50000"), proxy.counters.injected) == ((200, BODY), {"drip": 1})


_CUT = (ConnectionError, http.client.HTTPException)


@pytest.mark.parametrize(
    ("kind", "method", "error", "is_served"),
    [
        ("reset_before", "PUT", ConnectionResetError, False),
        ("reset_after", "PUT", ConnectionResetError, True),
        ("truncated_request", "PUT", _CUT, False),
        ("truncated_response", "GET", _CUT, True),
        ("stall", "GET", TimeoutError, True),
        ("stall_upload", "PUT", TimeoutError, False),
    ],
)
def test_a_fault_fails_the_request_before_or_after_the_server_served_it(
    server: TrivialServer, proxy: FaultProxy, kind: str, method: str, error: type[Exception], is_served: bool
) -> None:
    proxy.change(Settings(rates={kind: 1.0}, stall_s=600, drip_bytes_s=1))
    with pytest.raises(error):
        _ask(proxy.port, method, "/50000", bytes(64 << 20) if method == "PUT" else None)
    assert (proxy.counters.injected, len(server.requests)) == ({kind: 1}, int(is_served))
    proxy.quiet()
    assert _ask(proxy.port, "GET", "/50000") == (200, BODY)


@pytest.mark.parametrize(("kind", "method"), [("corrupt_request", "PUT"), ("corrupt_response", "GET")])
def test_a_corrupt_body_has_one_flipped_bit(server: TrivialServer, proxy: FaultProxy, kind: str, method: str) -> None:
    proxy.change(Settings(rates={kind: 1.0}, seed=3))
    status, received = _ask(proxy.port, method, "/50000", BODY if method == "PUT" else None)
    body = server.requests[0][2] if method == "PUT" else received
    assert (status, len(body)) == (200, len(BODY))
    assert sum((a ^ b).bit_count() for a, b in zip(body, BODY, strict=True)) == 1


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("http_500", 500, b"InternalError"), ("slow_down", 503, b"SlowDown"), ("request_timeout", 400, b"RequestTimeout")],
)
def test_an_answer_is_that_of_s3(server: TrivialServer, proxy: FaultProxy, kind: str, status: int, code: bytes) -> None:
    proxy.change(Settings(rates={kind: 1.0}))
    for method, data in (("GET", None), ("PUT", BODY), ("HEAD", None)):
        answered, body = _ask(proxy.port, method, "/1", data)
        assert answered == status and (code in body) == (method != "HEAD")
    assert server.requests == []


def test_a_plan_has_its_rates_and_repeats_with_its_seed() -> None:
    first, again, other = (Plan(Settings(rates=dict.fromkeys(KINDS, 1 / 24), seed=seed)) for seed in (7, 7, 8))
    drawn = [first.draw("GET") for _ in range(24_000)]
    for kind in KINDS:
        assert 800 < sum(fault is not None and fault.kind == kind for fault in drawn) < 1200
    assert drawn == [again.draw("GET") for _ in drawn] != [other.draw("GET") for _ in drawn]
    with pytest.raises(ValueError, match="at most 1"):
        Settings(rates={"stall": 0.6, "drip": 0.6})


def test_a_delay_line_adds_its_time_to_each_round_trip(proxy: FaultProxy) -> None:
    with DelayLine(f"127.0.0.1:{proxy.port}", 200) as line:
        began = time.monotonic()
        assert _ask(line.port, "GET", "/50000") == (200, BODY)
        # A handshake and a request. Without an upper bound: a machine may be slow.
        assert time.monotonic() - began >= 2 * 0.2
    assert proxy.counters.requests == 1
