"""Rules of the determinism level "portable" that need no torch. `training.determinism` applies the level in a rank.

A run at this level has the same bits on every x86-64 processor with AVX2 (docs/design/0016-portable-bits.md).
"""

from collections.abc import Mapping

from m5ws.errors import UsageError
from m5ws.records.environment import Determinism
from m5ws.records.run import LaunchSpec

RULES = "portable"
"""Part of the drift table with the ratings for two environments that both kept the level."""
_FACT = "cpu.portable"
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
"""Variables that the level pins. Without them torch, MKL, oneDNN and NumPy choose instructions by the processor.

AVX2 is the widest instruction set that AMD and Intel processors of the last ten years share. MKL gives equal bits on
both in one mode alone: with MKL_CBWR=AVX2 they differ. NumPy ignores a name that its version does not have.
"""


def refuse(determinism: Determinism, launch: LaunchSpec) -> None:
    """Raise UsageError, before any rank starts, if the snapshot has the level and this launch cannot keep it."""
    if determinism.level != "portable":
        return
    if launch.trainer == "deepspeed":
        raise UsageError(
            'determinism level "portable" cannot be kept with DeepSpeed, whose CPU operators are compiled for the '
            "processor that they are built on",
            hint='Set [determinism] level = "strict", or train with FSDP.',
        )
    changed = [name for name, value in launch.environment.items() if VARIABLES.get(name, value) != value]
    if changed:
        name = changed[0]
        raise UsageError(
            f'[run] environment sets {name}, which determinism level "portable" pins to {VARIABLES[name]!r}',
            hint=f"Remove {name} from [run] environment, or choose another level.",
        )


def is_kept(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> bool:
    """Return True if the facts of two environments show that both kept the level."""
    return old.get(_FACT) is not None and old.get(_FACT) == new.get(_FACT)


def unpinned(environment: Mapping[str, str]) -> str | None:
    """Return the first variable in `environment` with another value than the level pins, None without one."""
    return next((name for name, value in VARIABLES.items() if environment.get(name) != value), None)
