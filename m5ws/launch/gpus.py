"""The GPUs of this machine that processes may use, and equal shares of them."""

import os
import shutil
import subprocess
from collections.abc import Mapping

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_TIMEOUT_S = 60.0


def visible(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs by the names that CUDA_VISIBLE_DEVICES has for them; all of them if it is not set.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    """
    if (chosen := environment.get(_VARIABLE)) is not None:
        names = [name.strip() for name in chosen.split(",")]
        # CUDA sees the devices before the first invalid one.
        return names[: next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))]
    program = shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath))
    if program is None:
        return []
    try:
        done = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    count = sum(line.startswith("GPU ") for line in done.stdout.splitlines()) if done.returncode == 0 else 0
    return [str(number) for number in range(count)]


def shares(gpus: list[str], parallel: int, nproc: int) -> list[dict[str, str]]:
    """Return the variables of `parallel` runs that give each an equal share of the GPUs.

    Return empty variables if a share would have fewer GPUs than the `nproc` ranks of a run: then all runs use all GPUs.
    """
    size = len(gpus) // parallel
    if parallel == 1 or size < max(nproc, 1):
        return [{} for _ in range(parallel)]
    return [{_VARIABLE: ",".join(gpus[place * size : (place + 1) * size])} for place in range(parallel)]
