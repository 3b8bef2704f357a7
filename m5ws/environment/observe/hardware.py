"""Hardware and host, read from /proc, /sys and files of the host's tools. Starts no process and uses no network.

`system` is the root folder of these files. A file that is missing or not readable is an absent fact: the values are
evidence, and a failed read must not stop a snapshot.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import blake3

Facts = dict[str, str | None]

IMAGE_VARIABLE = "M5WS_CONTAINER_IMAGE"
"""Variable with the container's image by digest. The program that starts the container sets it, because few runtimes
state the image inside."""


def text(path: Path) -> str | None:
    """Return a small file's text without surrounding blanks, None if it is empty or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def os_release(system: Path) -> str | None:
    """Return the distribution's name and version (os-release(5), PRETTY_NAME)."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text(system / "etc/os-release") or "", re.MULTILINE)
    return match[1] if match else None


def cpu(system: Path) -> Facts:
    """Return the model, a digest of the instruction-set flags, and the number of CPUs that this process may use.

    The model includes family, model and stepping numbers, because virtual machines use one name for several chips.
    """
    first = (text(system / "proc/cpuinfo") or "").split("\n\n")[0]
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = sorted((values.get("flags") or values.get("Features") or "").split())
    return {
        "cpu.model": _cpu_model(values),
        "cpu.flags": blake3.blake3(" ".join(flags).encode()).hexdigest()[:16] if flags else None,
        "cpu.count": str(len(os.sched_getaffinity(0))),
    }


def _cpu_model(values: Mapping[str, str]) -> str | None:
    if name := values.get("model name"):
        keys = ("cpu family", "model", "stepping")
        return f"{name} ({', '.join(f'{key} {values[key]}' for key in keys if key in values)})"
    arm = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")
    return ", ".join(f"{key} {values[key]}" for key in arm if key in values) or None


def gpu(system: Path) -> Facts:
    """Return the NVIDIA driver's version, and all GPUs of the driver, also GPUs that this process cannot use."""
    driver = re.search(r"Kernel Module[^\n]*?\s(\d+\.[\d.]+)", text(system / "proc/driver/nvidia/version") or "")
    cards = sorted((system / "proc/driver/nvidia/gpus").glob("*/information"))
    matches = (re.search(r"^Model:\s*(.+)$", text(card) or "", re.MULTILINE) for card in cards)
    models = [match[1].strip() for match in matches if match]
    return {
        "gpu.driver": driver[1] if driver else text(system / "sys/module/nvidia/version"),
        "gpu.model": ", ".join(dict.fromkeys(models)) or None,
        "gpu.count": str(len(cards)) if cards else None,
    }


def pci_devices(system: Path, vendor: str, kind: tuple[str, str]) -> int:
    """Return the number of PCI devices of a vendor in whose folder a file begins with the given text."""
    name, prefix = kind
    folders = (system / "sys/bus/pci/devices").glob("*")
    texts = ((text(folder / "vendor"), text(folder / name) or "") for folder in folders)
    return sum(owner == vendor and value.startswith(prefix) for owner, value in texts)


def free_memory(system: Path) -> dict[str, int]:
    """Return the free bytes of this machine, and of the cgroups of this process if they have fewer."""
    free = re.search(r"^MemAvailable:\s*(\d+) kB", text(system / "proc/meminfo") or "", re.MULTILINE)
    known = {"free": int(free[1]) * 1024} if free else {}
    own = re.search(r"^0::/(.*)$", text(system / "proc/self/cgroup") or "", re.MULTILINE)
    root = system / "sys/fs/cgroup"
    inner = root / own[1] if own else root
    folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    files = [(folder, "memory.max", "memory.current", "inactive_file") for folder in folders]
    version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    files.append((root / "memory", *version_1))
    limits = [left for left in (_unused(*each) for each in files) if left is not None]
    if limits and min(limits) < known.get("free", min(limits) + 1):
        known["free in the cgroup"] = min(limits)
    return known


def _unused(folder: Path, most: str, used: str, cache: str) -> int | None:
    """Return the bytes that a cgroup may still use, without its file cache, which the kernel frees first."""
    limit, current = (text(folder / name) or "" for name in (most, used))
    if not (limit.isdigit() and current.isdigit()):
        return None
    freed = re.search(rf"^{cache} (\d+)$", text(folder / "memory.stat") or "", re.MULTILINE)
    return int(limit) - int(current) + (int(freed[1]) if freed else 0)


def aws(system: Path) -> Facts:
    """Return AMI and instance type from files of cloud-init or the firmware, without the metadata service."""
    metadata = _cloud_metadata(system)
    on_ec2 = text(system / "sys/class/dmi/id/sys_vendor") == "Amazon EC2"
    product = text(system / "sys/class/dmi/id/product_name") if on_ec2 else None
    return {"aws.ami": metadata.get("ami-id"), "aws.instance_type": metadata.get("instance-type") or product}


def _cloud_metadata(system: Path) -> dict[str, str]:
    """Return EC2's metadata from cloud-init's instance data, empty on other clouds."""
    try:
        data = json.loads(text(system / "run/cloud-init/instance-data.json") or "{}")
        metadata = data["ds"]["meta_data"]
        return {key: value for key, value in metadata.items() if isinstance(value, str)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
