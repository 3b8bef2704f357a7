"""Determinism settings, applied in the rank: what torch must be told before the script starts.

What has to be in the environment before Python starts is set by the launcher (`m5ws.records.determinism`).
"""

import torch

from m5ws.records.environment import Determinism
from m5ws.training.determinism import portable


def apply(determinism: Determinism) -> None:
    """Set threads, deterministic algorithms, cuDNN and TF32 as the snapshot says.

    Threads are set at every level: reductions are split by their number. "off" leaves the rest as torch has it.
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
    if portable.is_asked(determinism):
        portable.replace_square_roots()
