"""The leader's judgement of ranks without progress: with the stacks of all nodes, and only if a rank is still late."""

from typing import Any

import msgspec
import pytest

from m5ws.agent.link import Follower
from m5ws.attempts import stuck_ranks
from m5ws.attempts.followers import Followers
from m5ws.attempts.stuck_ranks import StuckRanks
from m5ws.records.launch import ALONE
from m5ws.records.ledger import Event, Stacks
from m5ws.records.nodes import Ended, Hello, Message, Reported, Suspected, TakeStacks
from m5ws.records.stacks import Frame, NodeEvidence, RankStack

WAITS = (
    Frame(file="/x/site-packages/torch/distributed/distributed_c10d.py", line=3, function="all_reduce"),
    Frame(file="train.py", line=40, function="main"),
)
READS = (Frame(file="train.py", line=9, function="read"),)


def _stack(rank: int, frames: tuple[Frame, ...] = WAITS, *, is_late: bool = True) -> RankStack:
    return RankStack(
        rank=rank, host=f"n{rank}", pid=1, step=7, phase="step", waited_s=61.0, limit_s=60.0,
        is_late=is_late, state="S", frames=frames,
    )  # fmt: skip


class _Watcher(msgspec.Struct):
    """The watcher of the leader's node, whose stacks are there at once."""

    is_suspicious: bool = False
    has_ended: bool = False
    stacks: tuple[RankStack, ...] = (_stack(0),)
    is_done: bool = False
    world: int = 3

    def begin(self) -> None:
        self.is_done = True

    def result(self) -> Reported:
        self.is_done = False
        return Reported(ranks=self.stacks, node=NodeEvidence(host="n0"))


class _Connection(msgspec.Struct):
    """A connection with messages that wait."""

    waiting: list[Message] = []
    sent: list[Message] = []

    def receive(self) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def send(self, message: Message) -> None:
        self.sent.append(message)


class _Attempt:
    """An attempt on three nodes with a rank each."""

    def __init__(self) -> None:
        plan: Any = type("Plan", (), {"place": ALONE})
        self.followers, self.connections, self.events = (
            Followers(plan, b""),
            (_Connection(), _Connection()),
            list[Any](),
        )
        nodes: Any = enumerate(self.connections, 1)
        self.followers._all = [Follower(Hello(node=node, host=f"n{node}", job=None), each) for node, each in nodes]
        self.watcher = _Watcher()
        watcher: Any = self.watcher
        self.ranks = StuckRanks(watcher, self.followers, self._append)

    def _append(self, event: Event) -> None:
        self.events.append(event)

    def look(self, *messages: Message) -> Any:
        """Receive one message of each follower, and look."""
        for connection, message in zip(self.connections, messages, strict=False):
            connection.waiting.append(message)
        self.followers.look()
        return self.ranks.look()


def test_the_attempt_ends_with_the_stacks_of_all_nodes() -> None:
    attempt = _Attempt()
    assert attempt.look() is None and attempt.connections[0].sent == []
    assert attempt.look(Suspected()) is None
    assert [connection.sent for connection in attempt.connections] == [[TakeStacks()], [TakeStacks()]]
    assert attempt.look(Reported(ranks=(_stack(1),))) is None
    evidence = NodeEvidence(host="n2", kernel=("9 s ago: NVRM: Xid 79",))
    attempt.connections[1].waiting.append(Reported(ranks=(_stack(2, READS),), node=evidence))
    reason = attempt.look()
    assert (reason.kind, reason.rank, reason.host, reason.place, reason.step) == ("stuck", 2, "n2", "train.py:9", 7)
    assert reason.problem.endswith(
        "rank 2 on n2, at train.py:9 in read; ranks 0, 1, waiting in all_reduce at train.py:40 in main"
    )
    [stacks] = attempt.events
    assert isinstance(stacks, Stacks) and [each.rank for each in stacks.ranks] == [0, 1, 2]
    assert stacks.nodes == (NodeEvidence(host="n0"), evidence)


def test_the_attempt_goes_on_if_no_rank_is_late_any_more_and_may_be_suspected_again() -> None:
    attempt = _Attempt()
    attempt.watcher.stacks = (_stack(0, is_late=False),)
    reports = [Reported(ranks=(_stack(rank, is_late=False),)) for rank in (1, 2)]
    attempt.look(Suspected())
    assert attempt.look(*reports) is None and attempt.events == []
    assert attempt.look() is None and len(attempt.connections[0].sent) == 1
    attempt.watcher.is_suspicious = True
    attempt.watcher.stacks = (_stack(0, READS),)
    attempt.look()
    assert attempt.look(*reports).rank == 0


def test_the_wait_for_the_stacks_of_a_node_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_ranks, "_PATIENCE_S", -1.0)
    attempt = _Attempt()
    attempt.watcher.is_suspicious = True
    reason = attempt.look()
    assert reason.kind == "stuck" and reason.rank is None


def test_the_leader_waits_for_no_node_without_processes() -> None:
    attempt = _Attempt()
    attempt.look(Ended(exit_code=0), Suspected())
    assert attempt.look(Reported(ranks=()), Reported(ranks=(_stack(2, READS),))).rank == 2


def test_no_attempt_is_stuck_after_the_end_of_its_processes() -> None:
    attempt = _Attempt()
    attempt.watcher.is_suspicious = attempt.watcher.has_ended = True
    assert attempt.look() is None
