"""DistributedDataParallel, with the same order of reduction in every step of every attempt.

After its first backward pass, DDP puts gradients into new buckets, by the order in which they were ready. The place of
an element in a bucket decides the order in which the ranks' values are added. With three ranks or more, the first step
of an attempt therefore has other bits than the same step in the middle of another attempt. m5ws creates the final
buckets before the first step. They have the parameters in reverse order of registration, which is roughly the order of
a backward pass.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from m5ws.training.compat import ddp as internals
from m5ws.training.compat.facts import Fact

_LEAST = 3
"""With two ranks, the order of addition does not matter."""


def fix_buckets(model: torch.nn.Module) -> Iterator[str]:
    """Create the final buckets of each DDP in a model; yield the reason where that is impossible; collective."""
    for part in _wrapped(model):
        if (reason := _obstacle(part)) is None:
            internals.rebuild_buckets(part)
        elif reason:
            yield reason


def facts(model: torch.nn.Module) -> Iterator[Fact]:
    """Yield the facts about torch that `fix_buckets` needs for a model."""
    for part in _wrapped(model):
        yield from internals.facts(part)


def _wrapped(model: torch.nn.Module) -> Iterator[DistributedDataParallel]:
    for part in model.modules():
        if isinstance(part, DistributedDataParallel) and part.process_group.size() >= _LEAST:
            yield part


def _obstacle(ddp: Any) -> str | None:
    """Return the reason why a DDP's buckets cannot be rebuilt; "" if they do not change anyway."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return ""
    if internals.has_comm_hook(ddp):
        return "it has a communication hook"
    if internals.reduces_otherwise(ddp):
        return "it uses mixed_precision=, delayed reduction or compiled autograd"
    if any(parameter.grad is not None for parameter in ddp.parameters()):
        return "it has gradients already"
    return None
