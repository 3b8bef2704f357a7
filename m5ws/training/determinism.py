"""Determinism settings of torch, applied in the rank before the script starts.

The launcher applies the settings that must be in the environment before Python starts (`m5ws.records.determinism`).

With level "portable", on a CPU, bits do not depend on the model of x86-64 processor, if it has AVX2. The variables
(`m5ws.records.portable`) pin the instructions that libraries choose. One function remains. MKL's square root begins
with an estimate (`rsqrtps`) that differs between AMD and Intel, and AdamW uses it. Here it is replaced.
"""

import inspect
import os
import platform
import warnings
from collections.abc import Mapping

import torch

from m5ws.errors import M5Error
from m5ws.records import portable
from m5ws.records.environment import Determinism

BASELINE = "x86-64-v3"
"""The fact `cpu.portable` if the settings are in force: the instructions that every such machine has."""

_registered: list[torch.library.Library] = []


class NotPortable(M5Error):
    """The settings of level "portable" are not in force in this process."""

    exit_code = 2
    hint = 'Train on another machine, or set [determinism] level = "strict".'


def apply(determinism: Determinism) -> None:
    """Apply the snapshot's settings: threads, deterministic algorithms, cuDNN and TF32.

    Threads are set at every level: reductions are split by their number. "off" leaves the rest at torch's defaults.

    https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    torch.set_num_threads(determinism.threads)
    if determinism.level == "off":
        return
    torch.use_deterministic_algorithms(True, warn_only=determinism.level == "warn")
    torch.utils.deterministic.fill_uninitialized_memory = determinism.fill_uninitialized  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = determinism.tf32
    torch.backends.cudnn.allow_tf32 = determinism.tf32
    if determinism.level == "portable":
        replace_square_roots()


def baseline(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return BASELINE if this process uses the instructions of level "portable", else None."""
    return None if obstacle(environment) else BASELINE


def require(environment: Mapping[str, str] = os.environ) -> None:
    """Raise NotPortable, with the reason, if the settings are not in force."""
    if reason := obstacle(environment):
        raise NotPortable(f'determinism level "portable" is not in force here: {reason}')


def obstacle(environment: Mapping[str, str]) -> str | None:
    """Return the reason why this process does not compute at level "portable", None if it does."""
    if (machine := platform.machine()) not in ("x86_64", "AMD64"):
        return f"the processor is {machine}, not x86-64"
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return "this torch is built without MKL"
    if name := portable.unpinned(environment):
        return f"{name} is {environment.get(name)!r}, not {portable.VARIABLES[name]!r}"
    if (capability := torch.backends.cpu.get_cpu_capability()) != "AVX2":
        return f"torch uses {capability} kernels: there is no AVX2, or torch was loaded before the settings"
    return None


def replace_square_roots() -> None:
    """Replace torch.sqrt on a CPU, in all its forms, by instructions that IEEE 754 defines; once a process.

    In float32 and narrower, the result is the correctly rounded one; `x ** 0.5` is not replaced.
    """
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # torch from 2.8 asks for this argument.
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        # torch warns that one of its kernels is replaced; that is intended.
        warnings.simplefilter("ignore")
        for name, kernel in (("sqrt", _sqrt), ("sqrt_", _sqrt_in_place), ("sqrt.out", _sqrt_out)):
            library.impl(name, kernel, "CPU", **override)  # type: ignore[no-untyped-call]
    _registered.append(library)


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        # Uses the kernel that is replaced here, which makes no estimate for complex numbers.
        return x.pow(0.5)
    kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    # Three operations in float64, each rounded once. Their error is too small to change the rounding to float32.
    return x.double().rsqrt().reciprocal().to(kind)


def _sqrt_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(_fitting(_sqrt(x), x))


def _sqrt_out(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    root = _fitting(_sqrt(x), out)
    return out.resize_(x.shape).copy_(root)


def _fitting(root: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return `root` if it can be written to `out`. Raises RuntimeError, as torch does, if that would lose values."""
    if not torch.can_cast(root.dtype, out.dtype):
        raise RuntimeError(f"result type {root.dtype} can't be cast to the desired output type {out.dtype}")
    return root
