"""Effective values inside this process, as facts: the values that torch uses, not the values of variables or pip.

A fact that does not apply here is None, never missing.
"""

import ctypes
import os
import platform
import re
import sys
from pathlib import Path

import torch

from m5ws.records.environment import ENVIRONMENT
from m5ws.training import determinism

Facts = dict[str, str | None]

_LIBRARIES = {
    "torch": r"libtorch_cpu\.so",
    "nccl": r"libnccl\.so|libnccl-static",
    "aws-ofi-nccl": r"libnccl-net[^/]*\.so|libnccl-ofi[^/]*\.so",
    "libfabric": r"libfabric\.so",
    "cudnn": r"libcudnn\.so",
    "cublas": r"libcublas\.so",
    "mkl": r"libmkl_(rt|core)[^/]*\.so",
    "openmp": r"lib(g|i)?omp[^/]*\.so",
}


def effective() -> Facts:
    """Return the facts that can change bits and are fixed in the process: threads, capability, modes, libraries."""
    return {
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "threads.interop": str(torch.get_num_interop_threads()),
        "deterministic": _deterministic(),
        "sdpa": _sdpa(),
        "tf32": str(torch.backends.cuda.matmul.allow_tf32),
        **versions(),
        **loaded(mapped()),
    }


def versions() -> Facts:
    """Return the versions torch was built with and runs on, and the devices that it sees."""
    cuda = torch.cuda.is_available()
    git = torch.version.git_version
    return {
        "torch": str(torch.__version__),
        "torch.cuda": torch.version.cuda,
        "torch.git": git if git and git != "Unknown" else None,
        "cuda.driver": _driver() if cuda else None,
        "cudnn": _text(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "nccl": _nccl() if torch.version.cuda else None,
        "gpu.model": torch.cuda.get_device_name() if cuda else None,
        "gpu.count": str(torch.cuda.device_count()),
        "cpu.capability": torch.backends.cpu.get_cpu_capability(),
        "cpu.portable": determinism.baseline(),
        "mkl": _config(r"(?:Math Kernel Library|oneAPI MKL|MKL) Version ([\d.]+)"),
        "onednn": _config(r"(?:MKL-DNN|oneDNN) v([\d.]+)"),
    }


def loaded(libraries: frozenset[str]) -> Facts:
    """Return the paths of loaded libraries that sum or send numbers, by library.

    A path inside this Python environment is relative to it: a rebuilt environment has another folder.
    """
    paths = sorted({*map(_place, libraries)})
    return {
        f"loaded.{name}": " ".join(path for path in paths if re.search(pattern, path.rpartition("/")[2])) or None
        for name, pattern in _LIBRARIES.items()
    }


def _place(path: str) -> str:
    inside = next((folder for folder in (sys.prefix, sys.exec_prefix) if path.startswith(f"{folder}{os.sep}")), None)
    return path if inside is None else f"{ENVIRONMENT}{path.removeprefix(inside)}"


def mapped() -> frozenset[str]:
    """Return the paths of the libraries in this process's memory map; none if the system has no map."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split(maxsplit=5)[5].strip() for line in lines if line.count("/") and ".so" in line)


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"


def _sdpa() -> str:
    """Return the attention kernels that torch may choose from; each gives other bits."""
    backends = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "math": torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
    }
    return " ".join(name for name, enabled in backends.items() if enabled)


def _driver() -> str | None:
    """Return the newest CUDA version that the loaded driver supports.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html
    """
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return None
    return None if failed else f"{number.value // 1000}.{number.value % 1000 // 10}"


def _nccl() -> str | None:
    """Return the version that the loaded NCCL reports."""
    try:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _config(pattern: str) -> str | None:
    match = re.search(pattern, torch.__config__.show())
    return match.group(1) if match else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)
