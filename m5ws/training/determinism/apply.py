"""Determinism settings of torch, applied in the rank before the script starts.

The launcher applies the settings that must be in the environment before Python starts (`m5ws.records.determinism`).
"""

import torch

from m5ws.records.environment import Determinism
from m5ws.training.determinism import portable


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
        portable.replace_square_roots()
