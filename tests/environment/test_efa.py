"""EFA is wanted by a pinned version or by FI_PROVIDER, and a network over TCP sockets has the first known cause."""

from pathlib import Path

import pytest

from m5ws.environment.nccl import efa
from m5ws.environment.nccl.log import NcclLog
from m5ws.records.environment import Declared, Observed
from tests.support.machine.efa_machines import make_machine

_NO_PLUGIN = "h:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
_NO_PROVIDER = "h:1:1 [0] nccl_ofi_net.c:608 NCCL WARN NET/OFI Couldn't find any optimal provider\n"


def _observed(**variables: str) -> Observed:
    return Observed(facts={f"variable.{name}": value for name, value in variables.items()})


@pytest.mark.parametrize(
    ("declared", "variables", "wanted"),
    [
        ({"efa": "2.13"}, {}, '[environment] wanted efa = "2.13"'),
        ({"nccl": "2.27"}, {"FI_PROVIDER": "efa"}, "FI_PROVIDER=efa"),
        ({}, {"FI_PROVIDER": "shm,efa"}, "FI_PROVIDER=shm,efa"),
        ({}, {"FI_PROVIDER": "efa;ofi_rxd"}, "FI_PROVIDER=efa;ofi_rxd"),
        ({}, {"FI_PROVIDER": "^efa"}, None),
        ({}, {"FI_PROVIDER": "^tcp"}, None),
        ({}, {"FI_PROVIDER": "tcp"}, None),
        ({"nccl": "2.27"}, {}, None),
    ],
)
def test_efa_is_wanted_by_a_pinned_version_or_the_provider(
    declared: dict[str, str], variables: dict[str, str], wanted: str | None
) -> None:
    assert efa.wanted_by(Declared(wanted=declared), _observed(**variables)) == wanted


_CAUSES = [
    ({}, {}, "", "the machine has no EFA device"),
    ({"devices": 4, "in_dev": False}, {}, "", "/dev/infiniband has no device"),
    ({"devices": 4}, {"NCCL_NET": "Socket"}, _NO_PLUGIN, "NCCL_NET=Socket excludes the plugin"),
    ({"devices": 4}, {"NCCL_NET_PLUGIN": "none"}, "", "NCCL_NET_PLUGIN=none excludes the plugin"),
    ({"devices": 4}, {"FI_PROVIDER": "tcp"}, _NO_PLUGIN, "NCCL found no plugin aws-ofi-nccl"),
    ({"devices": 4}, {"FI_PROVIDER": "tcp"}, _NO_PROVIDER, "FI_PROVIDER=tcp excludes the provider efa"),
    ({"devices": 4}, {"FI_PROVIDER": "^efa"}, _NO_PROVIDER, "FI_PROVIDER=^efa excludes the provider efa"),
    ({"devices": 4}, {"FI_PROVIDER": "^tcp"}, _NO_PROVIDER, "libfabric offers"),
    ({"devices": 4}, {"FI_PROVIDER": "efa"}, _NO_PROVIDER, "libfabric offers the plugin no provider efa"),
    ({"devices": 4}, {"FI_PROVIDER": "efa"}, "", "security group"),
]


@pytest.mark.parametrize(("machine", "variables", "log", "cause"), _CAUSES, ids=[case[3][:30] for case in _CAUSES])
def test_the_first_known_cause_is_named(
    tmp_path: Path, machine: dict[str, int], variables: dict[str, str], log: str, cause: str
) -> None:
    read = NcclLog()
    read.feed(log)
    root = make_machine(tmp_path, devices=machine.get("devices", 0), in_dev=bool(machine.get("in_dev", True)))
    assert cause in efa.cause(read, _observed(**variables), root)


@pytest.mark.parametrize(("plugin", "variables", "is_cause"), [
    ("1.0.1", {}, True),
    ("1.0.1", {"RDMAV_FORK_SAFE": "1"}, False),
    ("1.0.1", {"FI_EFA_FORK_SAFE": "1"}, False),
    ("1.1.0", {}, False),
    ("git-abc", {}, False),
])  # fmt: skip
def test_an_old_plugin_without_a_variable_for_forks_is_a_cause(
    tmp_path: Path, plugin: str, variables: dict[str, str], is_cause: bool
) -> None:
    observed = Observed(facts=_observed(**variables).facts | {"aws-ofi-nccl": plugin})
    assert ("FI_EFA_FORK_SAFE=1" in efa.cause(NcclLog(), observed, make_machine(tmp_path))) == is_cause
