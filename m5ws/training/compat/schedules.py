"""Internals of torch's learning rate schedules: the position, rates by a closed form, and the last rates."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from m5ws.training.compat.facts import Fact

_COUNT, _LAST = "_step_count", "_last_lr"
POSITION = ("last_epoch", _COUNT, _LAST, "_get_lr_called_within_step", "_is_initial")
"""Keys of a schedule's state that are its position; the other keys are its constants."""


def has_rates(scheduler: Any) -> bool:
    """Return True if a schedule can compute its learning rates at any position, not only at the next positions."""
    return isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR) or hasattr(scheduler, "_get_closed_form_lr")


def rates(scheduler: Any) -> list[Any]:
    """Return the learning rates at the schedule's position, if `has_rates` is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a rate that is read outside of a step
        closed = getattr(scheduler, "_get_closed_form_lr", scheduler.get_lr)
        return list(closed())


def set_last_rates(scheduler: Any, values: Sequence[Any]) -> None:
    """Set the rates that `get_last_lr` returns."""
    scheduler._last_lr = list(values)


def _probe() -> torch.optim.lr_scheduler.LambdaLR:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(0))], lr=0.5)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def _has_position() -> bool:
    return {"last_epoch", _COUNT, _LAST} <= _probe().state_dict().keys()


def _has_last_rates() -> bool:
    probe = _probe()
    set_last_rates(probe, [0.25])
    return probe.get_last_lr() == [0.25] and rates(probe) == [0.5]


MOVED = (
    Fact("torch", "last_epoch, _step_count and _last_lr in the state of LRScheduler", _has_position),
    Fact("torch", "LRScheduler._last_lr and LambdaLR.get_lr() outside of a step", _has_last_rates),
    Fact("torch", "StepLR._get_closed_form_lr", lambda: has_rates(torch.optim.lr_scheduler.StepLR)),
)
