"""`python -m m5ws.training.backends.deepspeed.cpu_adam`: build DeepSpeed's CPUAdam operator before ranks start.

It prints the path of the operator. With `--try`, a failed build is no error: only scripts with an offloaded optimizer
use the operator. Each installation of torch and DeepSpeed has a folder of its own, m5ws-KEY in TORCH_EXTENSIONS_DIR:
two of them never overwrite each other's builds or wait for each other. A note in the folder names the built operator.
With it, a call imports neither torch nor DeepSpeed and takes a fraction of a second.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import blake3

from m5ws import locks
from m5ws.environment.observe import hardware
from m5ws.errors import M5Error, MissingExtra
from m5ws.filesystem import write_atomically

# torch waits for ever for the lock file of a killed process. A rank holds it for the seconds of a load.
_LOAD_S = 120.0
_ROOT = "TORCH_EXTENSIONS_DIR"
_OWN = re.compile(r"m5ws-[0-9a-f]{16}")
# Variables that choose the compiler or the instructions; with DS_*.
_VARIABLES = {"CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDA_HOME", "HOME"}
# Of TORCH_* and PYTORCH_*, only the variables that a build reads. torchrun, m5ws and users set others in some processes
# of an environment; with these in the key, each process would compile for itself.
_TORCH_VARIABLES = {
    "PYTORCH_NVCC",
    "PYTORCH_ROCM_ARCH",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_DONT_CHECK_COMPILER_ABI",
    "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES",
    "TORCH_NO_COMPILER_WRAPPER",
    "TORCH_XPU_ARCH_LIST",
}
_NOTE_NAME = "cpu_adam.txt"
_SOURCE = "deepspeed/ops/csrc/adam/cpu_adam.cpp"


class BuildFailed(M5Error):
    """The compiled operator could not be built."""

    hint = "CPUAdam needs a C++ compiler and ninja."


def use_own_folder() -> Path:
    """Let this process and its children build and load operators in the environment's folder. Raises MissingExtra."""
    try:
        folder = _folder(os.environ)
    except metadata.PackageNotFoundError as error:
        raise MissingExtra("the DeepSpeed engine", "deepspeed") from error
    os.environ[_ROOT] = str(folder)
    return folder


def ensure_cpu_adam() -> Path:
    """Build and load the operator, unless it is built already, and return its path.

    Sets TORCH_EXTENSIONS_DIR to the environment's own folder, for this process and its children. DeepSpeed loads its
    operators from that folder: CPUAdam, and the operator of `init_distributed` if there is no accelerator. Raises
    MissingExtra, and BuildFailed with the output of the compiler.
    """
    folder = use_own_folder()
    with _only_builder(folder):
        return _known_or_built(folder / _NOTE_NAME)


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """Wait for another process that builds, or was killed while it built. No operator is then being built."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "building", "a") as file:
        with suppress(OSError):  # Some file systems have no locks.
            locks.acquire(file.fileno(), math.inf)
        _drop_locks(folder, _LOAD_S)
        yield


def _known_or_built(note: Path) -> Path:
    if (operator := _known(note)) is not None:
        return operator
    # DeepSpeed prints to stdout, where only the path belongs.
    with redirect_stdout(sys.stderr):
        from m5ws.training.compat import cpu_adam as internals

        module, *_ = [_load(builder) for builder in internals.builders()]
    operator = Path(module.__file__)
    write_atomically(note, str(operator).encode())
    return operator


def _folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of an environment's builds. Its name is a digest of all that a build depends on.

    Headers and sources are found where torch and DeepSpeed are installed. Environments that share both share the build.

    A process that inherited such a folder as TORCH_EXTENSIONS_DIR gets the same folder, or its own beside it.
    """
    relevant = {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES | _TORCH_VARIABLES or name.startswith("DS_")
    }
    packages = [metadata.distribution(name) for name in ("deepspeed", "torch")]
    versions = [sys.version, *((package.version, str(package.locate_file(""))) for package in packages)]
    # The operator is compiled with -march=native.
    processor = hardware.cpu(Path("/"))
    relevant |= {name: str(processor[name]) for name in ("cpu.model", "cpu.flags")}
    # The visible GPUs do not change a build, but the absence of any GPU does.
    no_gpu = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    key = blake3.blake3(json.dumps([versions, sorted(relevant.items()), no_gpu]).encode()).hexdigest()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(environment.get(_ROOT) or f"{caches}/torch_extensions").expanduser().absolute()
    return (root.parent if _OWN.fullmatch(root.name) else root) / f"m5ws-{key[:16]}"


def _known(note: Path) -> Path | None:
    """Return the operator in a note, unless its file is missing, or older than the installed source.

    ninja compiles again if the source is newer: without this check, each rank would, in its own process.
    """
    source = Path(str(metadata.distribution("deepspeed").locate_file(_SOURCE)))
    try:
        operator = Path(note.read_text())
        built_s = operator.stat().st_mtime
    except OSError:
        return None
    return operator if not source.exists() or source.stat().st_mtime <= built_s else None


def _load(builder: Any) -> Any:
    try:
        return builder.load(verbose=False)
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"DeepSpeed's operator {builder.name} could not be built or loaded: {error}") from error


def _drop_locks(folder: Path, age_s: float) -> None:
    """Remove the locks of killed builds or ranks, for which the next process would wait for ever."""
    for lock in folder.glob("*/lock"):
        try:
            if time.time() - lock.stat().st_mtime > age_s:
                lock.unlink()
        except FileNotFoundError:
            pass


def main(arguments: Sequence[str] = ()) -> int:
    """Print the path of the operator; with `--try`, a failed build is no error."""
    try:
        print(ensure_cpu_adam())
    except M5Error as error:
        print(f"error: {error}\n{error.hint}", file=sys.stderr)
        return 0 if "--try" in arguments else error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
