"""A plain client sees each fault of the fault proxy as that fault, and without faults no difference."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.network.fault_plan import KINDS, Plan, Settings
from tests.support.network.proxies import FaultProxy
from tests.support.network.trivial_server import TrivialServer, content
from tests.support.paths import ROOT

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


def _always(proxy: FaultProxy, kind: str, **others: float) -> http.client.HTTPConnection:
    proxy.change(Settings(rates={kind: 1.0}, **others))  # type: ignore[arg-type]
    return _connect(proxy)


def _connect(proxy: FaultProxy, timeout_s: float = 10) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)


def _put(connection: http.client.HTTPConnection, data: bytes = BODY) -> int:
    connection.request("PUT", "/key", body=data)
    response = connection.getresponse()
    response.read()
    return response.status


def _get(connection: http.client.HTTPConnection, path: str = "/50000") -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def test_without_faults_everything_goes_through_as_it_is(server: TrivialServer, proxy: FaultProxy) -> None:
    connection = _connect(proxy)
    assert _put(connection) == 200
    assert _get(connection) == _get(connection, "/chunked/50000") == BODY
    assert _get(connection, "/0") == b""
    connection.request("HEAD", "/17")
    head = connection.getresponse()
    assert head.read() == b"" and head.headers["Content-Length"] == "17"
    assert [request[:2] for request in server.requests] == [
        ("PUT", "/key"),
        ("GET", "/50000"),
        ("GET", "/chunked/50000"),
        ("GET", "/0"),
        ("HEAD", "/17"),
    ]
    assert server.requests[0][2] == BODY
    # A signature covers it: the server must see the one that the client has signed.
    assert server.hosts == {f"127.0.0.1:{proxy.port}"}
    seen = proxy.counters
    assert (seen.requests, seen.connections, seen.injected) == (5, 1, {})
    assert seen.methods == {"PUT": 1, "GET": 3, "HEAD": 1} and seen.bytes_up == 50_000


def test_a_reset_before_is_seen_by_the_client_alone(server: TrivialServer, proxy: FaultProxy) -> None:
    with pytest.raises(ConnectionResetError):
        _get(_always(proxy, "reset_before"))
    assert server.requests == []


def test_a_lost_response_is_of_a_request_that_the_server_has_served(server: TrivialServer, proxy: FaultProxy) -> None:
    with pytest.raises(ConnectionResetError):
        _put(_always(proxy, "reset_after"))
    assert server.requests == [("PUT", "/key", BODY)]


@pytest.mark.parametrize("request_line", ["GET /5000", "GET /chunked/5000", "GET /0", "HEAD /17", "PUT /key"])
def test_a_truncated_response_ends_anywhere(proxy: FaultProxy, request_line: str) -> None:
    request = f"{request_line} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".encode()
    closing = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    whole = _without_date(_all_of(proxy, closing))
    ends = set()
    for seed in range(12):
        proxy.change(Settings(rates={"truncated_response": 1.0}, seed=seed))
        part = _without_date(_all_of(proxy, request))
        ends.add(len(part))
        assert len(part) < len(whole.replace(b"Connection: close\r\n", b""))
    assert len(ends) > 4


def _all_of(proxy: FaultProxy, request: bytes) -> bytes:
    """Send bytes and return all bytes until the connection ends. http.client accepts half a head as a whole one."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def _without_date(response: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*", b"", response)


def test_a_truncated_request_is_cut_for_both(server: TrivialServer, proxy: FaultProxy) -> None:
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        _put(_always(proxy, "truncated_request"), content(5_000_000))
    with pytest.raises(ConnectionResetError):
        _get(_always(proxy, "truncated_request"))
    deadline = time.monotonic() + 10
    while not server.cut_short and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.cut_short == 1 and not any(method == "PUT" for method, _, _ in server.requests)


@pytest.mark.parametrize("path", ["/50000", "/chunked/50000", "/1"])
def test_a_corrupt_response_has_one_other_bit(proxy: FaultProxy, path: str) -> None:
    _one_bit_differs(_get(_always(proxy, "corrupt_response"), path), content(int(path.rpartition("/")[2])))
    assert proxy.counters.injected == {"corrupt_response": 1}


def test_a_corrupt_request_has_one_other_bit(server: TrivialServer, proxy: FaultProxy) -> None:
    connection = _always(proxy, "corrupt_request", seed=3)
    assert _put(connection) == 200
    _one_bit_differs(server.requests[0][2], BODY)
    # A request without a body cannot be corrupted, and is counted as unchanged.
    assert _get(connection) == BODY
    assert proxy.counters.pointless == {"corrupt_request": 1}


def _one_bit_differs(found: bytes, right: bytes) -> None:
    assert len(found) == len(right)
    assert sum((a ^ b).bit_count() for a, b in zip(found, right, strict=True)) == 1


def test_a_stall_sends_some_bytes_and_then_nothing(proxy: FaultProxy) -> None:
    proxy.change(Settings(rates={"stall": 1.0}, stall_s=600))
    connection = _connect(proxy, timeout_s=0.5)
    connection.request("GET", "/50000")
    response = connection.getresponse()
    got: list[bytes] = []
    with pytest.raises(TimeoutError):
        got.extend(iter(lambda: response.read(1), b""))
    assert 0 < len(got) < len(BODY)


def test_a_stall_ends_with_a_reset(proxy: FaultProxy) -> None:
    with pytest.raises(ConnectionResetError):
        _get(_always(proxy, "stall", stall_s=0.2))


def test_a_stalled_upload_is_not_taken(server: TrivialServer, proxy: FaultProxy) -> None:
    proxy.change(Settings(rates={"stall_upload": 1.0}, stall_s=600))
    with pytest.raises(TimeoutError):
        _put(_connect(proxy, timeout_s=0.5), bytes(64 << 20))
    assert server.requests == []


def test_a_drip_is_whole_and_slow(proxy: FaultProxy) -> None:
    connection = _always(proxy, "drip", drip_bytes_s=2000)
    connection.request("GET", "/1000")
    response = connection.getresponse()
    pieces = [response.read1() for _ in range(10)]
    assert b"".join(pieces) == content(1000) and all(0 < len(piece) <= 200 for piece in pieces)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("http_500", 500, "InternalError"), ("slow_down", 503, "SlowDown"), ("request_timeout", 400, "RequestTimeout")],
)
def test_answers_are_those_of_s3(server: TrivialServer, proxy: FaultProxy, kind: str, status: int, code: str) -> None:
    connection = _always(proxy, kind)
    for method, data in (("GET", None), ("PUT", BODY), ("HEAD", None)):
        connection.request(method, "/key", body=data)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == status
        assert (f"<Code>{code}</Code>" in text) == (method != "HEAD")
    assert server.requests == [] and proxy.counters.injected == {kind: 3}


def test_quiet_means_quiet(proxy: FaultProxy) -> None:
    with pytest.raises(ConnectionResetError):
        _get(_always(proxy, "reset_before"))
    proxy.quiet()
    assert _get(_connect(proxy)) == BODY
    assert proxy.counters.injected == {}


def test_the_same_seed_breaks_the_same_requests(proxy: FaultProxy) -> None:
    def fates(seed: int) -> list[int]:
        proxy.change(Settings(rates={"http_500": 0.3, "slow_down": 0.3}, seed=seed))
        connection = _connect(proxy)
        found = []
        for _ in range(60):
            connection.request("GET", "/10")
            response = connection.getresponse()
            response.read()
            found.append(response.status)
        return found

    first = fates(7)
    assert first == fates(7) != fates(8)
    assert {200, 500, 503} == set(first)


def test_rates_are_met() -> None:
    rates = dict.fromkeys(KINDS, 1 / 24)
    plan = Plan(Settings(rates=rates))
    drawn = [plan.draw("GET") for _ in range(24_000)]
    for kind in KINDS:
        assert 800 < sum(fault is not None and fault.kind == kind for fault in drawn) < 1200
    with pytest.raises(ValueError, match="at most 1"):
        Settings(rates={"stall": 0.6, "drip": 0.6})


def test_settings_by_hand_are_checked(proxy: FaultProxy) -> None:
    assert _administer(proxy, {"rates": {"typo": 1}})[0] == 400
    assert _administer(proxy, {"stall_s": "long"})[0] == 400
    assert _administer(proxy, {"rates": {"http_500": 1}})[0] == 200
    assert _administer(proxy, {"seed": 4})[1]["settings"]["rates"] == {"http_500": 1.0}


def _administer(proxy: FaultProxy, said: dict[str, object]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(proxy.admin_url.split("/")[2], timeout=10)
    connection.request("PUT", "/", body=json.dumps(said))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_a_client_that_waits_to_be_told_to_go_on_is_told(proxy: FaultProxy) -> None:
    connection = _connect(proxy)
    connection.putrequest("PUT", "/key")
    connection.putheader("Content-Length", "5")
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n")
    connection.send(b"abcde")
    assert connection.getresponse().status == 200


def test_many_connections_at_once_do_not_mix(proxy: FaultProxy) -> None:
    wrong: list[int] = []

    def ask(number: int) -> None:
        connection = _connect(proxy)
        if any(_get(connection, f"/{number * 100 + at}") != content(number * 100 + at) for at in range(20)):
            wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and proxy.counters.requests == 320


def test_a_proxy_ends_with_the_process_that_started_it() -> None:
    made = "proxies.FaultProxy('127.0.0.1:1')"
    code = f"import os; from tests.support.network import proxies; print({made}.port, flush=True); os._exit(9)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            http.client.HTTPConnection("127.0.0.1", int(done.stdout)).connect()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    pytest.fail("it still answers")
