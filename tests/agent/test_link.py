"""The link between the nodes of an attempt: a listener serves one attempt, and leaves nothing behind."""

import socket
import threading
import time

import pytest

from m5ws.agent import link
from m5ws.agent.link import Connection, Listener, StartAgain
from m5ws.attempts import followers
from m5ws.records.launch import Place
from m5ws.records.nodes import Closed, Hello
from tests.support.waiting import wait_for

_KEY = b"k" * 32


@pytest.fixture
def place() -> Place:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Place(node=0, nodes=3, master="127.0.0.1", port=free.getsockname()[1] - 1, job="j")


def _join(place: Place, node: int) -> Connection:
    return link.join(Place(node=node, nodes=3, master=place.master, port=place.port, job="j"), _KEY, 10.0)


def test_the_port_of_a_closed_listener_is_free_for_the_next_attempt(place: Place) -> None:
    for _ in range(3):
        listener = Listener(place, _KEY)
        connections = [_join(place, node) for node in (1, 2)]
        assert [each.node for each in listener.wait(10.0, lambda: None, lambda _: None)] == [1, 2]
        listener.close()
        for connection in connections:
            connection.close()


def test_a_leader_that_refuses_sends_its_status_to_the_followers_that_came(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "_REFUSAL_S", 2.0)
    told = []

    def receive(connection: Connection) -> bool:
        try:
            told.append(connection.receive())
        except StartAgain:
            return True
        return isinstance(told[-1], Closed)

    refusing = threading.Thread(target=followers.refuse, args=(place, _KEY, 3))
    refusing.start()
    connection = _join(place, 2)
    wait_for(lambda: receive(connection))
    refusing.join(10.0)
    assert told[-1] == Closed(exit_code=3)


def test_a_greeting_that_comes_after_the_end_of_a_listener_is_turned_away(place: Place) -> None:
    listener = Listener(place, _KEY)
    opened = socket.create_connection((place.master, place.port + 1), 10.0)
    connection = Connection(opened, _KEY, is_leader=False)
    listener.close()
    connection.send(Hello(node=1, host="late", job="j"))

    def is_lost() -> bool:
        try:
            connection.receive()
        except StartAgain:
            return True
        return False

    end_s = time.monotonic() + link.SILENCE_S / 2
    while not is_lost():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    assert listener.followers == []
