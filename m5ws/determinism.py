"""Determinism settings as environment variables: what must be set before Python and CUDA start.

A pure function, and no torch: the launcher sets these, `training.determinism` does the rest in the rank.
"""

from collections.abc import Mapping

from m5ws.records import Determinism

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
"""What level "portable" pins: the instructions that torch, MKL, oneDNN and NumPy choose by the processor.

AVX2 is the widest that AMD and Intel processors of the last ten years share. MKL has one mode that is the same on both:
with MKL_CBWR=AVX2 they differ. NumPy passes over a name that its version does not know.
"""


def environment(determinism: Determinism) -> dict[str, str]:
    """Return the variables a rank must be started with.

    The thread count is always fixed, whatever the level: it changes bits (reductions are split by it), and
    MKL_DYNAMIC=FALSE keeps a library from quietly taking fewer. NVLS is switched off with a chosen NCCL
    algorithm, because it reduces in another order (https://github.com/NVIDIA/nccl/issues/1497).
    """
    threads = {"OMP_NUM_THREADS": str(determinism.threads), "MKL_DYNAMIC": "FALSE"}
    if determinism.level == "off":
        return threads
    fixed = threads | {
        "PYTHONHASHSEED": str(determinism.python_hash_seed),
        "CUBLAS_WORKSPACE_CONFIG": determinism.cublas_workspace,
    }
    if determinism.nccl_algo is not None:
        fixed |= {"NCCL_ALGO": determinism.nccl_algo, "NCCL_NVLS_ENABLE": "0"}
    return fixed | PORTABLE if determinism.level == "portable" else fixed


def unpinned(environment: Mapping[str, str]) -> str | None:
    """Return the first variable in `environment` that is not as level "portable" pins it, None if all are."""
    return next((name for name, value in PORTABLE.items() if environment.get(name) != value), None)
