"""Programs, kernel features and devices of this machine. `system` is the root folder of /proc and /sys."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from m5ws.environment.observe import hardware, native_libraries
from m5ws.launch import child, landlock
from m5ws.records.check import Check
from m5ws.snapshot.sources.git import Git
from m5ws.wording.checks import NO_MOUNT

_ENGINES = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("version", "--format", "{{.Client.Version}}"),
    "apptainer": ("version",),
}
"""Arguments with which each container engine prints its version. Docker's command does so if its server answers."""


def check_git(name: str, root: Path) -> Check:
    """Check that git is installed and accepts the repository around `root`, if there is one."""
    if shutil.which("git") is None:
        return Check(name, "missing", "no program `git` on PATH")
    return Check(name, "ok", Git().check(root))


def check_containers(name: str) -> Check:
    """List the container engines that answer. m5ws runs inside containers, and starts none."""
    installed = [engine for engine in _ENGINES if shutil.which(engine) is not None]
    answers = {engine: _run(engine, *_ENGINES[engine]) for engine in installed}
    listed = ", ".join(f"{engine} {version or 'does not answer'}" for engine, version in answers.items())
    return Check(name, "ok" if any(answers.values()) else "not needed", listed or "no engine on PATH")


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
    facts, devices = hardware.gpu(system), _devices(system, vendor="0x10de", kind=("class", "0x03"))
    if facts["gpu.driver"] is None:
        return Check(name, "broken" if devices else "not needed", f"{devices or 'no'} NVIDIA GPUs, no driver")
    return Check(name, "ok", f"{facts['gpu.count']} × {facts['gpu.model']}, driver {facts['gpu.driver']}")


def check_efa(name: str, environment: Mapping[str, str] = os.environ, system: Path = Path("/")) -> Check:
    """Check that EFA devices have their driver and the libraries with which NCCL uses them."""
    if not _devices(system, vendor="0x1d0f", kind=("device", "0xefa")):
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


def _devices(system: Path, vendor: str, kind: tuple[str, str]) -> int:
    """Return the number of PCI devices of a vendor in whose folder a file begins with the given text."""
    name, prefix = kind
    folders = (system / "sys/bus/pci/devices").glob("*")
    texts = ((hardware.text(folder / "vendor"), hardware.text(folder / name) or "") for folder in folders)
    return sum(owner == vendor and text.startswith(prefix) for owner, text in texts)


def _run(*argv: str) -> str | None:
    """Return the first line that a program prints, None if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0] if done.returncode == 0 else None
