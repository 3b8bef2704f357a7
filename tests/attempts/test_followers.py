"""The end of an attempt on several nodes, as its leader waits for it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from m5ws.agent.link import Follower
from m5ws.attempts.followers import Followers
from m5ws.records.launch import ALONE
from m5ws.records.nodes import Ended, Hello, Message, Stop

_SECONDS = 0.2
_LATE = 8
"""Looks at a follower until it ends: later than `_SECONDS`, at twenty looks a second."""


class _Connection:
    """A connection to a follower whose processes end by themselves after some looks, and not when they are told to."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self.sent: list[Message] = []

    def receive(self) -> Message | None:
        self._looks -= 1
        return Ended(exit_code=0) if self._looks == 0 else None

    def send(self, message: Message) -> None:
        self.sent.append(message)


class _Plan(msgspec.Struct, frozen=True):
    place: Any = ALONE


def _followers(*connections: _Connection) -> Followers:
    plan: Any = _Plan()
    made = Followers(plan, b"")
    of_nodes: Any = enumerate(connections, 1)
    made._all = [Follower(Hello(node=node, host="h", job=None), each) for node, each in of_nodes]
    return made


def test_processes_that_nobody_stopped_may_end_late() -> None:
    followers = _followers(_Connection(1), _Connection(_LATE))
    assert [end.exit_code for end in followers.await_ends(_SECONDS, lambda: None, None)] == [0, 0]
    assert followers.lost is None


@pytest.mark.parametrize(
    "stop", [lambda each: each.stop(_SECONDS), lambda each: setattr(each, "asked", Stop(grace_s=0, signal=15))]
)
def test_a_node_is_lost_if_its_processes_do_not_end_after_a_stop(stop: Callable[[Followers], None]) -> None:
    late = _Connection(10 * _LATE)
    followers = _followers(late)
    assert followers.await_ends(_SECONDS, lambda: stop(followers), None) == []
    assert followers.lost is not None and "node 1 (h) did not end" in (followers.lost.problem or "")
    assert any(isinstance(message, Stop) for message in late.sent)


def test_the_failure_of_one_node_stops_the_others() -> None:
    late, failed = _Connection(10 * _LATE), _Connection(0)
    followers = _followers(late, failed)
    followers._all[1].ended = Ended(exit_code=1)
    followers.await_ends(_SECONDS, lambda: None, None)
    assert any(isinstance(message, Stop) for message in late.sent)
