"""Programs, kernel features and devices of this machine. `system` is the root folder of /proc and /sys."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from m5ws.containers import engines
from m5ws.environment.observe import hardware, native_libraries
from m5ws.launch import child, landlock
from m5ws.records.check import Check
from m5ws.snapshot.sources.git import Git
from m5ws.wording.checks import NO_MOUNT


def check_git(name: str, root: Path) -> Check:
    """Check that git is installed and accepts the repository around `root`, if there is one."""
    if shutil.which("git") is None:
        return Check(name, "missing", "no program `git` on PATH")
    return Check(name, "ok", Git().check(root))


def check_containers(name: str, environment: Mapping[str, str] = os.environ) -> Check:
    """List the container engines on PATH, and the version of each engine that answers."""
    answers = engines.answers(environment)
    versions = {engine: answer.version for engine, answer in answers.items() if isinstance(answer, engines.Engine)}
    listed = ", ".join(f"{engine} {versions.get(engine, 'does not answer')}" for engine in answers)
    return Check(name, "ok" if versions else "not needed", listed or "no engine on PATH")


def check_landlock(name: str) -> Check:
    """Check for Landlock, which `[run] inputs = "pinned"` needs."""
    version = landlock.abi()
    return Check(name, "ok" if version >= landlock.LEAST_ABI else "not needed", f"ABI {version}")


def check_namespaces(name: str) -> Check:
    """Check for private mounts, which give attempts that run at the same time equal paths."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as target:
        return Check(name, "ok", "mounts") if child.can_mount(folder, target) else Check(name, "not needed", NO_MOUNT)


def check_io_limits(name: str, system: Path = Path("/")) -> Check:
    """Check for limits of input and output by cgroup v2 (https://docs.kernel.org/admin-guide/cgroup-v2.html#io)."""
    group = re.search(r"^0::/(.*)$", hardware.text(system / "proc/self/cgroup") or "", re.MULTILINE)
    folder = system / "sys/fs/cgroup" / (group[1] if group else "")
    if "io" not in (hardware.text(folder / "cgroup.controllers") or "").split():
        return Check(name, "not needed", "no controller `io` of cgroup v2")
    return Check(name, "ok", f"io.max: {hardware.text(folder / 'io.max') or 'no limit'}")


def check_gpus(name: str, system: Path = Path("/")) -> Check:
    """Check that NVIDIA's GPUs have their driver."""
    facts, devices = hardware.gpu(system), hardware.pci_devices(system, vendor="0x10de", kind=("class", "0x03"))
    if facts["gpu.driver"] is None:
        return Check(name, "broken" if devices else "not needed", f"{devices or 'no'} NVIDIA GPUs, no driver")
    return Check(name, "ok", f"{facts['gpu.count']} × {facts['gpu.model']}, driver {facts['gpu.driver']}")


def check_efa(name: str, environment: Mapping[str, str] = os.environ, system: Path = Path("/")) -> Check:
    """Check that EFA devices have their driver and the libraries with which NCCL uses them."""
    if not hardware.pci_devices(system, vendor="0x1d0f", kind=("device", "0xefa")):
        return Check(name, "not needed", "no EFA device")
    facts = native_libraries.network(environment, system)
    parts = {part: facts[part] for part in ("efa.driver", "libfabric", "aws-ofi-nccl")}
    detail = ", ".join(f"{part} {version or 'is missing'}" for part, version in parts.items())
    return Check(name, "ok" if all(parts.values()) else "broken", detail)


PROBES: Mapping[str, Callable[[str], Check]] = {
    "containers": check_containers,
    "landlock": check_landlock,
    "namespaces": check_namespaces,
    "io limits": check_io_limits,
    "gpus": check_gpus,
    "efa": check_efa,
}
"""The checks that need no workspace and no folder."""
