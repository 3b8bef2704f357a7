"""DistributedDataParallel, made to reduce gradients in one order in every step of every attempt.

After its first backward pass, DDP puts gradients into new buckets, by the order in which they were ready. Where an
element lies in a bucket decides in which order the ranks' values are added, so of three ranks or more the first step
of an attempt has other bits than the same step in the middle of another. The new buckets are therefore made before
the first step: of the parameters in reverse order of registration, which is about the order of a backward pass.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

_LEAST = 3
"""Of two ranks' values there is one sum."""


def fix_buckets(model: torch.nn.Module) -> Iterator[str]:
    """Make the buckets of each DDP in a model the last ones; yield why where that cannot be; collective."""
    for part in model.modules():
        if isinstance(part, DistributedDataParallel) and part.process_group.size() >= _LEAST:
            if (reason := _hinders(part)) is None:
                _fix(part)
            elif reason:
                yield reason


def _hinders(ddp: Any) -> str | None:
    """Return why a DDP's buckets cannot be made anew; "" if they do not change anyway."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return ""
    if ddp._comm_hooks or ddp._get_ddp_logging_data().get("comm_hook"):
        return "it has a communication hook"
    if ddp.mixed_precision is not None or ddp._use_python_reducer or getattr(ddp, "_delay_all_reduce_params", None):
        return "it uses mixed_precision=, delayed reduction or compiled autograd"
    if any(parameter.grad is not None for parameter in ddp.parameters()):
        return "it has gradients already"
    if not hasattr(ddp.reducer, "_push_all_rebuilt_params"):
        return f"torch {torch.__version__} has no way to do it"
    return None


def _fix(ddp: Any) -> None:
    parameters, sparse = ddp._build_params_for_reducer()
    # As DDP's own __setstate__ does it, but for the order.
    parameters, sparse = parameters[::-1], sparse[::-1]
    ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
