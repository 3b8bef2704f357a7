"""The logs of NCCL are read as they grow: facts are recorded once they stay, and a wrong network is a problem."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m5ws.agent.nccl_logs import NcclLogs
from m5ws.records.environment import Declared, Observed
from m5ws.records.ledger import NODE, NcclLogged
from m5ws.repository.ledger.ledger import decode_event
from m5ws.repository.ledger.spool import Spools, SpoolWriter, genesis
from tests.support.machine.efa_machines import make_machine
from tests.support.machine.nccl_facts import read
from tests.support.paths import ROOT

_SOCKET = (ROOT / "tests/data/nccl/socket-two-nodes.log").read_text()
_TCP = (ROOT / "tests/data/nccl/2.4.6-ofi-tcp.log").read_text()
_EFA = (ROOT / "tests/data/nccl/libfabric-p5en.log").read_text()


class _Node:
    """The folder of spools of a node, its logs, and a clock."""

    def __init__(self, root: Path, wanted: dict[str, str]) -> None:
        self.folder, self.now = root / "spool", 0.0
        self.folder.mkdir(parents=True)
        self.spool = SpoolWriter(self.folder / f"{NODE}.spool", genesis("run", 1, NODE))
        declared, machine = Declared(wanted=wanted), make_machine(root / "machine")
        self.logs = NcclLogs(self.folder, self.spool, declared, Observed(), machine, lambda: self.now)

    def write(self, name: str, text: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(text)

    def poll(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.logs.poll()

    @property
    def problem(self) -> str:
        return self.logs.problem or ""

    @property
    def recorded(self) -> list[tuple[int, dict[str, str]]]:
        events = (decode_event(event) for event in Spools(self.folder).read().get(NODE, []))
        return [(event.rank, event.facts) for event in events if isinstance(event, NcclLogged)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[_Node]:
    made = _Node(tmp_path, {"efa": "2.13"})
    yield made
    made.spool.close()


def test_a_node_without_nccl_records_nothing(node: _Node) -> None:
    node.poll()
    node.logs.finish()
    assert node.recorded == [] and node.logs.problem is None


def test_facts_are_recorded_once_after_they_stayed_for_a_second(node: _Node) -> None:
    begin, end = _EFA[:400], _EFA[400:]
    node.write("1.77.nccl", begin)
    node.poll()
    node.write("1.77.nccl", end)
    node.poll()
    assert node.recorded == []
    node.poll(after_s=0.5)
    assert node.recorded == []
    for _ in range(3):
        node.poll()
    node.logs.finish()
    assert node.recorded == [(1, read(_EFA))] and node.logs.problem is None


def test_the_end_records_facts_that_are_new(node: _Node) -> None:
    node.write("0.7.nccl", _EFA)
    node.write("2.8.nccl", _SOCKET)
    node.logs.finish()
    assert node.recorded == [(0, read(_EFA)), (2, read(_SOCKET))]


def test_data_through_another_provider_is_a_problem_if_efa_is_wanted(node: _Node) -> None:
    node.write("0.8.nccl", _EFA)
    node.poll()
    assert node.problem == ""
    node.write("1.8.nccl", _TCP)
    node.poll()
    assert "rank 1" in node.problem and "sends through libfabric's provider tcp;ofi_rxm" in node.problem


def test_data_through_sockets_is_a_problem_if_efa_is_wanted(node: _Node, tmp_path: Path) -> None:
    node.write("7.8.nccl", "h:1:1 [0] NCCL INFO Using network Socket\n")
    node.poll()
    assert node.problem == "", "GPUs of one machine may not use the network"
    node.write("7.8.nccl", _SOCKET)
    node.poll()
    for words in (f"rank 7 on node {socket.gethostname()}", 'wanted efa = "2.13"', "security group"):
        assert words in node.problem
    other = _Node(tmp_path / "other", {"nccl": "2.27"})
    other.write("7.8.nccl", _SOCKET)
    other.poll()
    assert other.problem == ""
    other.spool.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.integers(0, len(_EFA)), max_size=5).map(sorted))
def test_a_log_that_grows_in_any_parts_has_the_facts_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    """Two processes of a rank write at the same time, and neither ends its lines at the cuts."""
    grown, second = _Node(tmp_path_factory.mktemp("node"), {}), _EFA.replace(":700:701 ", ":800:801 ")
    for begin, end in zip([0, *cuts], [*cuts, len(_EFA)], strict=True):
        grown.write("0.1.nccl", _EFA[begin:end])
        grown.write("0.2.nccl", second[begin:end])
        grown.poll()
    grown.logs.finish()
    grown.spool.close()
    assert grown.recorded[-1] == (0, read(_EFA))
