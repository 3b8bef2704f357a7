"""Start and end of the observation in a rank."""

import os
import threading
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from m5ws.training.compat import facts, module_calls
from m5ws.training.observation.observer import Observer
from m5ws.training.runtime.context import ActiveRank


class _Watch:
    """The observer of this process, if there is one, and its hooks."""

    observer: Observer | None = None
    handles: tuple[Any, ...] = ()


def start(active: ActiveRank) -> None:
    """Observe the script's training in this process. Forked workers are not observed."""
    try:
        facts.require(module_calls.OBSERVED)
    except facts.UnsupportedVersion as error:
        active.notice("limit", f"the script is not observed: {error}")
        return
    observer = _Watch.observer = Observer(active)
    active.loss_listeners.append(observer.note_loss)

    thread = threading.get_ident()

    def is_seen() -> bool:
        # In a backward pass on a device, hooks of gradients are called in a thread of that device.
        return not module_calls.is_traced() and (threading.get_ident() == thread or module_calls.in_backward())

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if is_seen():
            observer.before_update(optimizer)

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if is_seen():
            observer.after_update(optimizer)

    _Watch.handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    module_calls.surround(observer.call)
    os.register_at_fork(after_in_child=end)


def finish() -> None:
    """Record the last step, and end the observation."""
    if _Watch.observer is not None:
        _Watch.observer.finish()
    end()


def end() -> int:
    """End the observation, if there is one, and return the number of steps that were observed."""
    observer, _Watch.observer = _Watch.observer, None
    if observer is None:
        return 0
    observer.end()
    module_calls.restore()
    for handle in _Watch.handles:
        handle.remove()
    return observer.step
