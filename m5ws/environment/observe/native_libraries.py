"""Native libraries of the network path: EFA's driver, libfabric, aws-ofi-nccl, and the installed NCCL.

The lookup follows the loader: LD_LIBRARY_PATH, the loader's cache, then Amazon's folders. These are the libraries
before a launch. A rank records the libraries that it loaded (`nccl`).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import blake3

from m5ws.environment.observe.hardware import Facts, text

_AMAZON = (
    "opt/amazon/efa/lib64",
    "opt/amazon/efa/lib",
    "opt/amazon/ofi-nccl/lib64",
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/install/lib",
)
_OFI_NCCL = ("libnccl-net-ofi.so", "libnccl-net.so", "libnccl-net-aws-ofi.so")
# The plugin prints "Initializing aws-ofi-nccl VERSION" from a constant in its read-only data.
_OFI_VERSION = re.compile(rb"aws-ofi-nccl (\d[\w.+-]*|git-\w+)")


def network(environment: Mapping[str, str], system: Path) -> Facts:
    """Return versions of the EFA driver and installer, libfabric and aws-ofi-nccl."""
    packages = text(system / "opt/amazon/efa_installed_packages") or ""
    installer = re.search(r"EFA installer version:\s*(\S+)", packages)
    return {
        "efa.driver": text(system / "sys/module/efa/version"),
        "efa.installer": installer[1] if installer else None,
        "libfabric": _libfabric(environment, system),
        "aws-ofi-nccl": _ofi_nccl(environment, system),
    }


def nccl(distributions: Mapping[str, str], environment: Mapping[str, str], system: Path) -> str | None:
    """Return the version of the NCCL that pip installed, or of the library file that the loader would find."""
    names = sorted(name for name in distributions if re.fullmatch(r"nvidia-nccl(-cu\d+)?", name))
    if names:
        return ", ".join(f"{distributions[name]} ({name})" for name in names)
    path = _find(("libnccl.so.2",), environment, system)
    name = path.resolve().name if path else ""
    return name.partition(".so.")[2] or name or None


def _libfabric(environment: Mapping[str, str], system: Path) -> str | None:
    """Return libfabric's release from its pkg-config file. The number in the library's file name is the ABI's."""
    path = _find(("libfabric.so.1", "libfabric.so"), environment, system)
    if path is None:
        return None
    described = text(path.parent / "pkgconfig/libfabric.pc") or ""
    release = re.search(r"^Version:\s*(\S+)", described, re.MULTILINE)
    return release[1] if release else path.resolve().name


def _ofi_nccl(environment: Mapping[str, str], system: Path) -> str | None:
    path = _find(_OFI_NCCL, environment, system)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    version = _OFI_VERSION.search(data)
    return version[1].decode() if version else f"{path.name} {blake3.blake3(data).hexdigest()[:16]}"


def _find(names: Sequence[str], environment: Mapping[str, str], system: Path) -> Path | None:
    """Return the first of `names` in the loader's order of folders, whose cache is of this machine alone."""
    folders = [Path(entry) for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    candidates = (folder / name for folder in folders for name in names)
    paths = _loader_cache() if system == Path("/") else {}
    cached = (Path(paths[name]) for name in names if name in paths)
    amazon = (system / folder / name for folder in _AMAZON for name in names)
    return next((path for path in (*candidates, *cached, *amazon) if path.is_file()), None)


@cache
def _loader_cache() -> dict[str, str]:
    """Return the paths in the loader's cache by name."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin:/bin")
    if program is None:
        return {}
    listing = subprocess.run([program, "-p"], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}).stdout
    return dict(re.findall(r"^\s*(\S+) \([^)]*\) => (\S+)$", listing, re.MULTILINE))
