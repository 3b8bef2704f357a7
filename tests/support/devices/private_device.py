"""Torch's backend of private_device.cpp: a device named `private`, whose memory is memory of the process.

A process has it from `register` to its end: tests use it in ranks of their own.
"""

import hashlib
import os
import subprocess
import types
from pathlib import Path

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

_SOURCE = Path(__file__).with_suffix(".cpp")


def build() -> Path:
    """Compile the backend, unless it is compiled already; return its library. Compiling takes about 20 seconds."""
    from torch.utils import cpp_extension

    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    key = hashlib.blake2b(_SOURCE.read_bytes() + torch.__version__.encode(), digest_size=8).hexdigest()
    library = folder / f"m5ws-private-device-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}")
        headers = [f"-isystem{path}" for path in cpp_extension.include_paths()]
        libraries = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch_cpu", "-lc10"]
        options = ["-std=c++20", "-O0", "-fPIC", "-shared", *headers]
        subprocess.run(["g++", *options, str(_SOURCE), *libraries, "-o", str(part)], check=True)
        part.rename(library)  # Published: a process that compiles at the same time has the same content.
    return library


def register(library: Path) -> None:
    """Have torch know the device `private` in this process, with the module `torch.private`."""
    rename_privateuse1_backend("private")
    torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    functions = torch.ops.private_device
    module = types.ModuleType("torch.private")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_rng_state=functions.get_rng_state,
        set_rng_state=functions.set_rng_state,
        manual_seed=functions.manual_seed,
        manual_seed_all=functions.manual_seed,
        _is_in_bad_fork=lambda: False,
    )
    torch._register_device_module("private", module)  # type: ignore[no-untyped-call]
