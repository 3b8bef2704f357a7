"""Determinism settings as environment variables: what must be set before Python and CUDA start.

A pure function, and no torch: the launcher sets these, `training.determinism` does the rest in the rank.
"""

from m5ws.records import portable
from m5ws.records.environment import Determinism


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
    return fixed | portable.VARIABLES if portable.is_asked(determinism) else fixed
