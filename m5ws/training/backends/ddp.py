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

from m5ws.training.compat import ddp as internals
from m5ws.training.compat.facts import Fact

_LEAST = 3
"""Of two ranks' values there is one sum."""


def fix_buckets(model: torch.nn.Module) -> Iterator[str]:
    """Make the buckets of each DDP in a model the last ones; yield why where that cannot be; collective."""
    for part in _wrapped(model):
        if (reason := _hinders(part)) is None:
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


def _hinders(ddp: Any) -> str | None:
    """Return why a DDP's buckets cannot be made anew; "" if they do not change anyway."""
    if ddp.find_unused_parameters and not ddp.static_graph:
        return ""
    if internals.has_comm_hook(ddp):
        return "it has a communication hook"
    if internals.reduces_otherwise(ddp):
        return "it uses mixed_precision=, delayed reduction or compiled autograd"
    if any(parameter.grad is not None for parameter in ddp.parameters()):
        return "it has gradients already"
    return None
