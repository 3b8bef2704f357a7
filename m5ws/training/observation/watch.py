"""Start and end of the observation in a rank.

Before a session, and in a script without one, steps are observed. From the beginning of a session on, only the
optimizers that step are noted. Invariant: at the end of the script, each parameter that an optimizer stepped in this
process is in a record, or its optimizer is listed as unread.
"""

import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from m5ws.errors import UsageError
from m5ws.records.ledger import ScriptEnded
from m5ws.training.compat import facts, module_calls
from m5ws.training.observation.final_weights import FinalWeights
from m5ws.training.observation.names import Names
from m5ws.training.observation.observer import Observer
from m5ws.training.runtime import context
from m5ws.training.runtime.context import ActiveRank


class _Watch:
    """The observation of this process: of steps before a session begins, and of the weights at the end."""

    observer: Observer | None = None
    """Until a session begins."""
    final: FinalWeights | None = None
    names: Names = Names()
    called: ClassVar[dict[int, weakref.ref[torch.optim.Optimizer]]] = {}
    """The optimizers that were called since `take_called`, in a session, by their ids."""
    handles: tuple[Any, ...] = ()


def start(active: ActiveRank) -> None:
    """Observe the script's training in this process. Forked workers are not observed."""
    try:
        facts.require(module_calls.OBSERVED)
    except facts.UnsupportedVersion as error:
        active.notice("limit", f"the script is not observed: {error}")
        return
    final = _Watch.final = FinalWeights()
    observer = _Watch.observer = Observer(active, final)
    _Watch.names = observer.names
    thread = threading.get_ident()

    def is_seen() -> bool:
        # In a backward pass on a device, hooks of gradients are called in a thread of that device.
        return threading.get_ident() == thread or module_calls.in_backward()

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if _Watch.observer is not None and not module_calls.is_traced() and is_seen():
            observer.before_update(optimizer)

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if module_calls.is_traced():
            return
        if _Watch.observer is None:
            final.follow_optimizer(optimizer, _Watch.names, is_recorded=False)
            _Watch.called[id(optimizer)] = weakref.ref(optimizer)
        elif is_seen():
            observer.after_update(optimizer)
        else:
            final.miss(optimizer)

    _Watch.handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    module_calls.surround(observer.call, observer.before_backward)
    os.register_at_fork(after_in_child=end)


def begin_session(modules: Iterable[torch.nn.Module], optimizers: Iterable[Any], engine: Any) -> int:
    """Observe no more steps, and follow the parts of a session. Return the number of steps that were observed."""
    observer, _Watch.observer = _Watch.observer, None
    final = _Watch.final
    if observer is None or final is None:
        return 0
    module_calls.restore()
    if observer.has_begun:
        observer.finish()
    else:
        _Watch.names = Names()  # Without the earlier attempts, whose steps no session needs.
    for optimizer in optimizers:
        final.follow_optimizer(optimizer, _Watch.names, is_recorded=True)
    for module in modules:
        final.follow_module(module)
        final.record(module.parameters())
    # They are buffers with padding: the engine's parameters are read.
    groups = getattr(getattr(engine, "optimizer", None), "param_groups", ())
    final.record(parameter for group in groups for parameter in group["params"])
    return observer.step


def is_watching() -> bool:
    """Return True if the calls of optimizers are noted."""
    return _Watch.final is not None


def take_called() -> list[torch.optim.Optimizer]:
    """Return the optimizers that were called in the present step of a session."""
    called, _Watch.called = _Watch.called, {}
    return [optimizer for ref in called.values() if (optimizer := ref()) is not None]


def resumed_at(step: int) -> None:
    """State that the script continues after `step`, the last step that its loaded checkpoint contains.

    For scripts without a session, before their first step; outside `m5ws run` it does nothing. Raises UsageError.
    """
    if step < 0:
        raise UsageError(f"m5ws.resumed_at({step}): a step is 0 or more", hint="0 states a start from the beginning.")
    if _Watch.observer is not None:
        _Watch.observer.resume_at(step)


def finish() -> None:
    """Record the last step and the weights that are alive, and end the observation."""
    observer, final, active = _Watch.observer, _Watch.final, context.active()
    if observer is not None:
        observer.finish()
    error = sys.exception()
    has_ended = error is None or (isinstance(error, SystemExit) and not error.code)
    if final is not None and active is not None and has_ended:
        gc.collect()  # Otherwise it depends on the collector whether a model in a cycle is alive.
        if observer is None or observer.step or final.unread():
            _record_end(active, final)
    end()


def _record_end(active: ActiveRank, final: FinalWeights) -> None:
    """Record the weights at the end of the script. An error makes them unknown."""
    weights: dict[str, str] = {}
    try:
        weights, unread = module_calls.call_without_modes(final.take, _Watch.names), final.unread()
    except Exception as error:  # noqa: BLE001  # whatever it is, the script has done its work
        unread = (f"the weights at the end of the script ({type(error).__name__}: {error})",)
    active.emit(ScriptEnded, rank=active.rank, weights=weights, unread=unread)


def end() -> None:
    """End the observation."""
    _Watch.observer = _Watch.final = None
    module_calls.restore()
    for handle in _Watch.handles:
        handle.remove()
    _Watch.handles = ()
