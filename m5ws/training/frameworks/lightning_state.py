"""Exact resume of Lightning's Trainer: generators and the order of the data, in the checkpoints of the script.

Lightning restores models, optimizers and progress. Here a callback of each Trainer adds to a checkpoint, for each rank:
its generators, its generators before the epoch's order was drawn, and the number of batches since then. A later attempt
draws the same order again, reads and drops these batches, and sets the generators.

Invariant: a checkpoint of the same process is restored as without m5ws, because learning rate finders save and restore.
"""

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import blake3
import msgspec
import torch
import torch.distributed as dist

from m5ws.records.ledger import RESUME_LIMIT
from m5ws.training.compat import lightning as internals
from m5ws.training.dataloader import Feed
from m5ws.training.frameworks import after_import
from m5ws.training.runtime import context
from m5ws.training.state import rng

_KEY = "m5ws"
_USED = (
    "_data_fetcher",
    "epoch_progress.current.processed",
    "epoch_loop.batch_progress.current.ready",
    "epoch_loop.batch_progress.is_last_batch",
)
"""Attributes of a Trainer's loop, as Lightning has them since 2.0."""
_BEFORE_END = (
    "the checkpoint was saved after the last batch of an epoch and before the epoch's end, which Lightning does not "
    "repeat: it omits the validation, and counts the epoch otherwise. Checkpoints of the end of an epoch are exact"
)
_packages: list[str] = []
"""The packages whose Trainers get the callback."""
_before_order: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()
"""The generators before a CombinedLoader, which has all loaders of a training, began its newest epoch."""
_next_epoch: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()
"""The restored generators with which a CombinedLoader begins its next epoch, until a batch is trained. It may begin it
more than once.
"""
_own_saves: set[bytes] = set()
"""Digests of the states that this process saved."""


class _Saved(msgspec.Struct, frozen=True):
    """State of a rank at a save. Without `before_order` the epoch was over: the next one draws its order.

    `logged_steps`: in `on_train_epoch_end`, the step under which the next values are logged. Older builds lack it.
    `call`: older builds numbered the calls of `fit`. A number above 1 shows a script with several trainings.
    """

    generators: dict[str, Any]
    before_order: dict[str, Any] | None
    batches: int
    call: int = 1
    logged_steps: int | None = None


def earlier_call(checkpoint: Mapping[str, Any]) -> int | None:
    """Return `call` of a checkpoint that a rank of an earlier attempt saved, None for any other checkpoint."""
    states = [state.cpu().numpy().tobytes() for state in checkpoint.get(_KEY, ())]
    if not states or any(_digest(state) in _own_saves for state in states):
        return None
    return msgspec.msgpack.decode(states[0], type=_Saved).call


def install() -> None:
    """Add the callback to each Trainer, once the script imports Lightning. Its entry points call `callbacks`."""
    _packages.extend(("lightning.pytorch", "pytorch_lightning"))
    for package in _packages:
        after_import.change(f"{package}.utilities.combined_loader", _watch_order)
        after_import.change(f"{package}.trainer.trainer", _watch_fit)


def callbacks(package: str) -> list[Any]:
    """Return the callbacks for a Trainer of a package of Lightning; none in a process without `install`."""
    return [_callback(f"{package}.trainer.trainer")] if package in _packages else []


def _watch_order(module: ModuleType) -> None:
    original: Callable[[Any], Any] = module.CombinedLoader.__iter__

    @functools.wraps(original)
    def begin_epoch(self: Any) -> Any:
        named = _generators(self.flattened)
        if self in _next_epoch:
            rng.restore(_next_epoch[self], named)
        _before_order[self] = rng.capture(named)
        return original(self)

    module.CombinedLoader.__iter__ = begin_epoch


def _watch_fit(module: ModuleType) -> None:
    original: Callable[..., Any] = module.Trainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_known(self.fit_loop):
            self.callbacks = [callback for callback in self.callbacks if not isinstance(callback, _ExactResume)]
        elif not any(isinstance(callback, _ExactResume) for callback in self.callbacks):
            # The script replaced the callbacks, or this m5ws is not installed, and has no entry points.
            self.callbacks.append(_callback(module.__name__))
        for callback in self.callbacks:
            if isinstance(callback, _ExactResume):
                # Validation and tests load checkpoints too.
                callback.restored, callback.states = None, {}
        result = original(self, *args, **kwargs)
        for callback in self.callbacks:
            if isinstance(callback, _ExactResume):
                callback.restore_after_end()
        return result

    module.Trainer.fit = fit


def _is_known(fit_loop: Any) -> bool:
    """Return True if a loop has the attributes that the callback uses."""
    try:
        for name in _USED:
            operator.attrgetter(name)(fit_loop)
    except AttributeError as error:
        active = context.active()
        if active is not None and active.rank == 0:
            active.notice(RESUME_LIMIT, f"Lightning's checkpoints get no generators and no order of the data: {error}")
        return False
    return True


def _callback(module: str) -> Any:
    """Return a callback for the Trainer of a module; a Trainer that starts processes pickles it."""
    return type(_ExactResume.__name__, (_ExactResume, sys.modules[module].Callback), {"module": module})()


class _ExactResume:
    """The hooks of the callback."""

    module: str
    restored: _Saved | None = None
    states: Mapping[str, Any] = {}
    """The states of all callbacks in the restored checkpoint."""
    done_epochs: int = 0
    """The number of epochs before the present one."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return _callback, (self.module,)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        active = context.active()
        for listen in active.loss_listeners if active is not None else ():
            # Lightning has divided it for the mean over the batches of a step.
            listen(loss.detach() * trainer.accumulate_grad_batches)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        active = context.active()
        # Collective, so that it needs each process of the Trainer to be a rank. Those that Lightning starts are none.
        if active is None or active.world != trainer.world_size or _fetcher(trainer) is None:
            return
        own = msgspec.msgpack.encode(_state(trainer, self.done_epochs))
        ranks = [own]
        if active.world > 1:
            ranks = [b""] * active.world
            dist.all_gather_object(ranks, own)
        _own_saves.add(_digest(own))
        # As tensors, which torch loads with weights_only=True, and which are compared as such.
        checkpoint[_KEY] = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in ranks]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        active, ranks = context.active(), checkpoint.get(_KEY, ())
        if active is None or not len(ranks) == active.world == trainer.world_size:
            return
        own = ranks[active.rank].cpu().numpy().tobytes()
        if _digest(own) not in _own_saves:
            self.restored = msgspec.msgpack.decode(own, type=_Saved)
            self.states = checkpoint.get("callbacks", {})

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.done_epochs = _done_epochs(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # An epoch in the middle of which a training continues has no start.
        self.done_epochs = _done_epochs(trainer)
        active, state, states = context.active(), self.restored, self.states
        self.restored, self.states = None, {}
        fetcher = _fetcher(trainer)
        if active is None or state is None or fetcher is None:
            return
        if state.logged_steps is not None:
            internals.finish_epoch(trainer, state.logged_steps)
        _restore(state, trainer.fit_loop, fetcher)
        internals.restore_saves(trainer, states)
        if active.rank == 0:
            place = f"after batch {state.batches} of an epoch" if state.before_order else "at the end of an epoch"
            active.notice("resume", f"generators and the order of the data are restored {place}")
            if state.before_order is None and state.logged_steps is None:
                active.notice(RESUME_LIMIT, _BEFORE_END)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if _next_epoch and (fetcher := _fetcher(trainer)) is not None:
            _next_epoch.pop(fetcher.combined_loader, None)

    def restore_after_end(self) -> None:
        """Set the generators of the process if the checkpoint was the last one, so that no training started."""
        if self.restored is not None:
            saved = self.restored.generators
            rng.restore({name: saved[name] for name in saved.keys() & rng.capture({}).keys()}, {})
            self.restored = None


def _digest(state: bytes) -> bytes:
    return blake3.blake3(state).digest()


def _fetcher(trainer: Any) -> Any:
    """Return the iterator of the training's loaders, which has them as `combined_loader`; None if there is none."""
    return operator.attrgetter("_data_fetcher")(trainer.fit_loop)


def _done_epochs(trainer: Any) -> int:
    return int(trainer.fit_loop.epoch_progress.current.processed)


def _state(trainer: Any, done_epochs: int) -> _Saved:
    """Return the state of a rank. `done_epochs` is the number of epochs before the present one."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    loader = _fetcher(trainer).combined_loader
    generators = rng.capture(_generators(loader.flattened))
    if progress.is_last_batch:
        is_end = _done_epochs(trainer) > done_epochs
        return _Saved(generators, None, 0, logged_steps=internals.logged_steps(trainer) if is_end else None)
    return _Saved(generators, _before_order.get(loader), progress.current.ready)


def _restore(state: _Saved, fit_loop: Any, fetcher: Any) -> None:
    """Begin the epoch again, and continue after the batches that were done."""
    loaders = fetcher.combined_loader.flattened
    named = _generators(loaders)
    if any(hasattr(loader, "load_state_dict") for loader in loaders):
        # Lightning has restored its position. It must not begin again.
        rng.restore(state.generators, named)
        return
    rng.restore(state.before_order or state.generators, named)
    for sampler in _samplers(loaders):
        sampler.set_epoch(fit_loop.epoch_progress.current.processed)
    if fit_loop.epoch_progress.current.processed == 0:
        # Persistent workers draw their seed in the first epoch alone.
        fetcher.combined_loader.reset()
    if state.before_order is None:
        _next_epoch[fetcher.combined_loader] = state.generators
    iter(fetcher)
    for _ in range(state.batches):
        next(fetcher)
    # The loop adds them to the number of batches itself.
    fetcher.fetched -= state.batches
    if state.before_order:
        rng.restore(state.generators, named)


def _generators(loaders: Sequence[Any]) -> dict[str, torch.Generator]:
    """Return the generators of the loaders' own, by name."""
    named = [Feed(loader, None).generators() for loader in loaders]
    return {f"{name}{number}": generator for number, own in enumerate(named) for name, generator in own.items()}


def _samplers(loaders: Sequence[Any]) -> Iterator[Any]:
    """Yield the samplers that draw an order for each epoch, such as DistributedSampler."""
    for loader in loaders:
        batches = getattr(loader, "batch_sampler", None)
        for sampler in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            if hasattr(sampler, "set_epoch"):
                yield sampler
