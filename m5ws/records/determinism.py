"""Determinism settings as environment variables, which must be set before Python and CUDA start.

A pure function without torch: the launcher sets these variables, and `training.determinism` the rest in the rank.
"""

from m5ws.records import portable
from m5ws.records.environment import Determinism


def environment(determinism: Determinism) -> dict[str, str]:
    """Return the variables of a rank's process.

    The thread count is fixed at each level, because reductions are split by it. MKL_DYNAMIC=FALSE prevents a library
    from taking fewer threads. With a chosen NCCL algorithm, NVLS is off, because it reduces in another order
    (https://github.com/NVIDIA/nccl/issues/1497).
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
    return fixed | portable.VARIABLES if determinism.level == "portable" else fixed
