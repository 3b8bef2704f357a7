"""The check that NCCL uses EFA where EFA is wanted, and the known causes if it does not."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from m5ws.environment.nccl.log import NcclLog
from m5ws.environment.nccl.rules import is_in
from m5ws.environment.observe import hardware
from m5ws.records.environment import Declared, Observed

SOCKET = "Socket"
"""NCCL's name of its network over TCP sockets (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)."""
_LAST = (
    "no cause is known. Candidates: the log of NCCL, and the security group, which must allow all traffic to and "
    "from itself (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html)"
)


def wanted_by(declared: Declared, observed: Observed) -> str | None:
    """Return the setting that asks for EFA: the pinned version, or libfabric's provider; None without a setting."""
    if "efa" in declared.wanted:
        return f'[environment] wanted efa = "{declared.wanted["efa"]}"'
    provider = observed.facts.get("variable.FI_PROVIDER") or ""
    return f"FI_PROVIDER={provider}" if _lists_efa(provider) and not provider.startswith("^") else None


def detour(log: NcclLog) -> str | None:
    """Return the network through which data goes without EFA; None with EFA, and without data between nodes."""
    provider = log.facts.get("nccl.provider", "efa")
    if SOCKET in log.sends:
        return f"NET/{SOCKET}"
    return f"libfabric's provider {provider}" if log.sends and "efa" not in provider else None


def cause(log: NcclLog, observed: Observed, system: Path = Path("/")) -> str:
    """Return the first known cause of a network without EFA, with its remedy. `system`: root of /sys and /dev."""
    return next(chain(_of_devices(system), _of_settings(observed, log), (_LAST,)))


def _lists_efa(provider: str) -> bool:
    """Return True if efa is in the list of FI_PROVIDER, which `^` negates (libfabric's fabric(7))."""
    return "efa" in re.split("[,;]", provider.removeprefix("^"))


def _of_devices(system: Path) -> Iterator[str]:
    if not hardware.pci_devices(system, vendor="0x1d0f", kind=("device", "0xefa")):
        yield (
            "the machine has no EFA device (/sys/bus/pci/devices). Use an instance with an EFA interface, or do not "
            "ask for EFA"
        )
    elif not any((system / "dev/infiniband").glob("uverbs*")):
        yield (
            "/dev/infiniband has no device. Load the driver efa, or start the container with the devices "
            "(--device=/dev/infiniband/uverbs0 …)"
        )


def _of_settings(observed: Observed, log: NcclLog) -> Iterator[str]:
    values = {name: observed.facts.get(f"variable.{name}") or "" for name in ("NCCL_NET", "NCCL_NET_PLUGIN")}
    chosen = {name: value for name, value in values.items() if value.lower() in ("socket", "ib", "none")}
    provider = observed.facts.get("variable.FI_PROVIDER") or ""
    forks = {observed.facts.get(f"variable.{name}") for name in ("FI_EFA_FORK_SAFE", "RDMAV_FORK_SAFE")}
    for name, value in chosen.items():
        yield f"{name}={value} excludes the plugin aws-ofi-nccl. Unset {name}"
    if log.no_plugin:
        yield (
            "NCCL found no plugin aws-ofi-nccl. Install the plugin, and name its folder in LD_LIBRARY_PATH "
            "(/opt/amazon/ofi-nccl/lib)"
        )
    if provider and _lists_efa(provider) == provider.startswith("^"):
        yield f"FI_PROVIDER={provider} excludes the provider efa. Unset FI_PROVIDER"
    if log.no_provider:
        yield (
            "libfabric offers the plugin no provider efa. `fi_info -p efa -t FI_EP_RDM` must list one: install "
            "Amazon's libfabric (/opt/amazon/efa), and no other before it in LD_LIBRARY_PATH"
        )
    if forks == {None} and is_in(observed.facts.get("aws-ofi-nccl"), "<1.1"):
        yield (
            "this aws-ofi-nccl does not prepare the EFA provider for forked processes. Set FI_EFA_FORK_SAFE=1 "
            "(RDMAV_FORK_SAFE=1 before libfabric 1.13), or install aws-ofi-nccl 1.2 or newer"
        )
