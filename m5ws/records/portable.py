"""Determinism level "portable": each rule on it that needs no torch. `training.portable` keeps the level in a rank.

A run of the level has the same bits on every x86-64 processor with AVX2 (docs/design/0016-portable-bits.md).
"""

from collections.abc import Mapping

from m5ws.errors import UsageError
from m5ws.records.environment import Determinism
from m5ws.records.run import LaunchSpec

RULES = "portable"
"""The part of drift's table that rates facts where both sides computed as the level requires."""
PROMISE = "equal bits on any x86-64 processor with AVX2, and where there is a GPU on the same model of it"
_FACT = "cpu.portable"
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
"""The variables that the level pins: the instructions that torch, MKL, oneDNN and NumPy choose by the processor.

AVX2 is the widest that AMD and Intel processors of the last ten years share. MKL has one mode that is the same on both:
with MKL_CBWR=AVX2 they differ. NumPy passes over a name that its version does not know.
"""


def is_asked(determinism: Determinism) -> bool:
    """Return True if a snapshot has the level."""
    return determinism.level == "portable"


def refuse(determinism: Determinism, launch: LaunchSpec) -> None:
    """Raise UsageError if the snapshot has the level and this launch cannot keep it, before any rank starts."""
    if not is_asked(determinism):
        return
    if launch.trainer == "deepspeed":
        raise UsageError(
            'determinism level "portable" cannot be kept with DeepSpeed, whose CPU operators are compiled for the '
            "processor that they are built on",
            hint='Set [determinism] level = "strict", or train with FSDP.',
        )
    pinned = VARIABLES
    if other := next((name for name, value in launch.environment.items() if pinned.get(name, value) != value), None):
        raise UsageError(
            f'[run] environment sets {other}, which determinism level "portable" pins to {pinned[other]!r}',
            hint=f"Remove {other} from [run] environment, or choose another level.",
        )


def is_kept(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> bool:
    """Return True if the facts of two environments show that both computed as the level requires."""
    return old.get(_FACT) is not None and old.get(_FACT) == new.get(_FACT)


def unpinned(environment: Mapping[str, str]) -> str | None:
    """Return the first variable in `environment` that is not as the level pins it, None if all are."""
    return next((name for name, value in VARIABLES.items() if environment.get(name) != value), None)
