"""State of a DeepSpeed engine with ZeRO: this rank's elements of each parameter, without padding.

ZeRO's flat buffers are the parameters of the inner optimizer. Their padding is uninitialised memory, so they are not
compared as tensors of their own, and neither is the norm of their gradients.
"""

from typing import Any

import torch

from m5ws.training.backends.deepspeed import layout
from m5ws.training.fingerprint import fingerprint


def is_engine(module: torch.nn.Module) -> bool:
    """Return True for a DeepSpeed engine whose optimizer is ZeRO's."""
    if type(module).__module__.partition(".")[0] != "deepspeed":
        return False
    is_partitioned: Any = getattr(module, "zero_optimization", None)
    return bool(is_partitioned and is_partitioned())


def fingerprints(engine: Any) -> dict[str, str]:
    """Return fingerprints of this rank's parts of parameters, their fp32 copies, and optimizer state, by name."""
    module = engine.module
    pieces = (*layout.parameter_pieces(module), *layout.zero_pieces(engine.optimizer, layout.names(module)))
    return fingerprint.merge([fingerprint.local(pieces)])
