"""Hardware and host, read from /proc, /sys and files that the host's tools leave; no process, no network.

`system` is where the root of these files is. A file that is absent or not readable is an absent fact: the
values are evidence, and a failed read must not stop a snapshot.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import blake3

Facts = dict[str, str | None]

IMAGE_VARIABLE = "M5WS_CONTAINER_IMAGE"
"""Set by who starts a container, to its image by digest: a container cannot see its own image's name."""


def text(path: Path) -> str | None:
    """Return a small file's text without surrounding blanks, or None if it cannot be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def os_release(system: Path) -> str | None:
    """Return the distribution's name and version (os-release(5), PRETTY_NAME)."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', text(system / "etc/os-release") or "", re.MULTILINE)
    return found[1] if found else None


def cpu(system: Path) -> Facts:
    """Return model, a digest of the set of instruction-set flags, and the number of CPUs this process may use.

    The model carries family, model and stepping numbers: virtual machines give one name to several chips.
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
    """Return the NVIDIA driver's version and what GPUs it drives, whether or not this process may use them."""
    driver = re.search(r"Kernel Module[^\n]*?\s(\d+\.[\d.]+)", text(system / "proc/driver/nvidia/version") or "")
    cards = sorted((system / "proc/driver/nvidia/gpus").glob("*/information"))
    found = (re.search(r"^Model:\s*(.+)$", text(card) or "", re.MULTILINE) for card in cards)
    models = [match[1].strip() for match in found if match]
    return {
        "gpu.driver": driver[1] if driver else text(system / "sys/module/nvidia/version"),
        "gpu.model": ", ".join(dict.fromkeys(models)) or None,
        "gpu.count": str(len(cards)) if cards else None,
    }


def container(system: Path, environment: Mapping[str, str]) -> Facts:
    """Return the engine whose container this is (None outside of one) and the image, where one can tell.

    The image is what `M5WS_CONTAINER_IMAGE` says, or Podman's own note, or Apptainer's image file.
    """
    podman = text(system / "run/.containerenv")
    noted = dict(re.findall(r'^(image|imageid)="([^"]*)"', podman or "", re.MULTILINE))
    apptainer = environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER")
    return {
        "container": _engine(system, environment, podman is not None, apptainer is not None),
        "container.image": environment.get(IMAGE_VARIABLE) or noted.get("image") or apptainer or None,
        "container.image_id": noted.get("imageid") or None,
    }


def _engine(system: Path, environment: Mapping[str, str], podman: bool, apptainer: bool) -> str | None:
    control_groups = text(system / "proc/self/cgroup") or ""
    if podman or (system / "run/.containerenv").exists():
        return "podman"
    if apptainer:
        return "apptainer"
    if "kubepods" in control_groups or "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (system / ".dockerenv").exists() or "/docker" in control_groups:
        return "docker"
    found = re.search(r"containerd|lxc|enroot", control_groups)
    return found[0] if found else None


def aws(system: Path) -> Facts:
    """Return AMI and instance type as cloud-init or the firmware wrote them; the metadata service is not asked."""
    metadata = _cloud_metadata(system)
    on_ec2 = text(system / "sys/class/dmi/id/sys_vendor") == "Amazon EC2"
    product = text(system / "sys/class/dmi/id/product_name") if on_ec2 else None
    return {"aws.ami": metadata.get("ami-id"), "aws.instance_type": metadata.get("instance-type") or product}


def _cloud_metadata(system: Path) -> dict[str, str]:
    """Return EC2's metadata out of cloud-init's instance data; empty on any other cloud."""
    try:
        data = json.loads(text(system / "run/cloud-init/instance-data.json") or "{}")
        metadata = data["ds"]["meta_data"]
        return {key: value for key, value in metadata.items() if isinstance(value, str)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
