"""The followers of an attempt, as their leader waits for them after the end of its own processes."""

from typing import Any

import msgspec
import pytest

from m5ws.agent.link import Follower
from m5ws.attempts.followers import Followers
from m5ws.records.launch import ALONE
from m5ws.records.nodes import Ended, Hello, Message, Stop, Storing


class _Connection:
    """A connection with messages that wait."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.sent: list[Message] = []

    def receive(self) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

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


def test_a_rank_may_work_on_until_the_processes_of_all_nodes_have_ended() -> None:
    first, second = _Connection(), _Connection()
    followers = _followers(first, second)
    assert followers.is_training
    first.waiting.append(Ended(exit_code=0))
    followers.look()
    assert followers.is_training
    second.waiting.append(Storing())
    followers.look()
    assert not followers.is_training


@pytest.mark.parametrize("message", [Ended(exit_code=1), Stop(grace_s=0, signal=15)])
def test_no_rank_works_on_after_a_failure_or_a_stop_of_another_node(message: Message) -> None:
    first, second = _Connection(), _Connection()
    followers = _followers(first, second)
    first.waiting.append(message)
    followers.look()
    assert not followers.is_training


def test_a_node_is_lost_if_its_processes_do_not_end_after_a_stop() -> None:
    late = _Connection()
    followers = _followers(late)
    followers.stop(0.2)
    assert not followers.is_training and len(late.sent) == 1
    assert followers.await_ends(0.2, None) == []
    assert followers.lost is not None and "node 1 (h) did not end" in (followers.lost.problem or "")
