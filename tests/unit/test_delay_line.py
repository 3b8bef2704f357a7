"""The delay line adds its time to each round trip, and only time."""

import http.client
import socket
import threading
import time

import pytest

from tests.support.network.proxies import DelayLine, FaultProxy
from tests.support.network.trivial_server import TrivialServer, content

pytestmark = pytest.mark.soak

RTT_S = 0.2


def test_bytes_come_whole_and_each_round_trip_takes_longer() -> None:
    with TrivialServer() as server, DelayLine(server.address, RTT_S * 1000) as line:
        connection = http.client.HTTPConnection("127.0.0.1", line.port, timeout=30)
        began = time.monotonic()
        for number in range(3):
            connection.request("GET", f"/{number + 100_000}")
            assert connection.getresponse().read() == content(number + 100_000)
        # Three round trips, and the one of the handshake. No upper bound: a machine may be slow.
        assert time.monotonic() - began >= 4 * RTT_S


def test_what_is_on_its_way_does_not_hold_up_what_follows() -> None:
    """64 MiB in 64 KiB pieces: one after the other they would take 200 s."""
    size_bytes, received = 64 << 20, bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        taken, _ = listener.accept()
        with taken:
            while data := taken.recv(1 << 20):
                received.extend(data)
            taken.sendall(b"done")

    thread = threading.Thread(target=take)
    thread.start()
    with DelayLine(f"127.0.0.1:{listener.getsockname()[1]}", RTT_S * 1000) as line:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", line.port)) as client:
            for number in range(size_bytes >> 16):
                client.sendall(bytes([number % 256]) * (1 << 16))
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == b"done"
        assert 2 * RTT_S <= time.monotonic() - began < 100
    thread.join()
    listener.close()
    assert len(received) == size_bytes and all(received[at << 16] == at % 256 for at in range(size_bytes >> 16))


def test_it_stands_before_a_fault_proxy() -> None:
    with TrivialServer() as server, FaultProxy(server.address) as proxy:
        with DelayLine(f"127.0.0.1:{proxy.port}", 10) as line:
            connection = http.client.HTTPConnection("127.0.0.1", line.port, timeout=30)
            connection.request("GET", "/1000")
            assert connection.getresponse().read() == content(1000)
        assert proxy.counters.requests == 1


def test_a_server_that_is_not_there_is_a_lost_connection() -> None:
    with DelayLine("127.0.0.1:1", 10) as line:
        connection = http.client.HTTPConnection("127.0.0.1", line.port, timeout=30)
        try:
            connection.request("GET", "/")
            connection.getresponse()
        except (ConnectionError, http.client.HTTPException):
            return
    raise AssertionError("it answered")
