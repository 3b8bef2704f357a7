"""Lightning's Trainer: `Trainer(callbacks=[m5ws.adapters.lightning()])`, of `lightning` or `pytorch_lightning`.

The callback gives the checkpoint's counters to Lightning's loops (`fit_loop.load_state_dict`), and the states of the
callbacks to them. Lightning leaves out no batches, so the callback begins the epoch's order again, and reads and drops
the batches that were done. Weights, optimizers, schedules and generators are the session's.
https://lightning.ai/docs/pytorch/stable/extensions/callbacks.html
"""

import copy
import importlib
import math
import sys
from typing import Any

import torch
from torch.utils.data import IterableDataset

from m5ws.training.adapters.training import Training, Unsupported, has_position, refuse
from m5ws.training.compat import lightning as internals
from m5ws.training.runtime import context

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
_MONITORED = (
    "callbacks monitor {}: Lightning does not save means over the training batches of an epoch that has begun, so a "
    "mean that is logged at the end of this epoch is over the batches since the resume"
)
_BATCHES = "epoch_loop.batch_progress"
_REFUSED = ("StochasticWeightAveraging", "WeightAveraging", "Timer")


def lightning() -> Any:
    """Return the callback that records a training of Lightning's Trainer, and resumes it.

    Raises ImportError without Lightning. A Trainer that a resume would not continue exactly raises Unsupported when it
    begins to fit.
    """
    imported = [name for name in _PACKAGES if name in sys.modules]
    bases = [importlib.import_module(name).Callback for name in imported or _PACKAGES[:1]]
    return type("M5wsCallback", (_Hooks, *bases), {})()


def _refuse(trainer: Any, module: Any, world: int) -> None:
    """Raise Unsupported if a resume of the training would not be exact."""
    strategy = type(trainer.strategy).__name__
    plateau = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
    restoring = [item for item in (module, *trainer.callbacks) if _overrides(item, "on_load_checkpoint")]
    kinds = {kind.__name__ for item in trainer.callbacks for kind in type(item).__mro__}
    others = [item for item in _loaders(trainer) if not has_position(item)]
    iterable = any(isinstance(getattr(item, "dataset", None), IterableDataset) for item in others)
    modes = {
        f"the strategy {strategy}: m5ws.session() restores FSDP2 and DeepSpeed": strategy not in _STRATEGIES,
        "processes that Lightning starts itself: start them by torchrun": world != trainer.world_size,
        "manual optimization": not module.automatic_optimization,
        "ReduceLROnPlateau, because Lightning does not save the metrics of an epoch that has begun": plateau,
        "reload_dataloaders_every_n_epochs": bool(trainer.reload_dataloaders_every_n_epochs),
        f"on_load_checkpoint of {', '.join(type(item).__name__ for item in restoring)}": bool(restoring),
        f"the callbacks {', '.join(_REFUSED)}": bool(kinds.intersection(_REFUSED)),
        "an IterableDataset, which has no position": iterable,
        "training_step(dataloader_iter)": "DataLoaderIter" in type(_fetcher(trainer)).__name__,
        "a training without an end: set max_steps or max_epochs": not 0 < trainer.estimated_stepping_batches < math.inf,
    }
    refuse("Lightning", modes)


def _overrides(item: Any, hook: str) -> bool:
    """Return True if a module or callback overrides a hook of Lightning."""
    owner = next((kind for kind in type(item).__mro__ if hook in vars(kind)), type(item))
    return owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning")


def _fetcher(trainer: Any) -> Any:
    """Return the iterator of the training's batches. Raises Unsupported if Lightning has another iterator."""
    fetcher = internals.data_fetcher(trainer.fit_loop)
    if fetcher is None:
        raise Unsupported("this version of Lightning reads its batches in a way that m5ws does not know")
    return fetcher


def _loaders(trainer: Any) -> list[Any]:
    return list(_fetcher(trainer).combined_loader.flattened)


class _Hooks:
    """The hooks of the callback."""

    _training: Training | None = None
    _step = 0
    """The number of optimizer steps before the present step."""
    _repeats = False
    """True until the first batch of a resume is read."""
    _is_begun = False
    """True until the hook of the first epoch of the process."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if (active := context.active()) is None:
            return
        trainer.fit_loop.setup_data()
        _refuse(trainer, pl_module, active.world)
        self._training = training = Training(active, lambda: self._counters(trainer))
        training.reads_again = True
        if training.position is not None:
            self._restore(trainer, training)
            monitors = sorted({str(item.monitor) for item in trainer.callbacks if getattr(item, "monitor", None)})
            if monitors and active.rank == 0:
                active.notice("resume-limit", _MONITORED.format(", ".join(monitors)))
        configs = [config.scheduler for config in trainer.lr_scheduler_configs]
        precision = trainer.precision_plugin
        is_over = training.begin(
            trainer.model,
            trainer.optimizers,
            configs,
            int(trainer.estimated_stepping_batches),
            _loaders(trainer),
            {"precision": precision} if precision.state_dict() else {},
        )
        trainer.should_stop = trainer.should_stop or is_over

    def _counters(self, trainer: Any) -> dict[str, Any]:
        """Return the counters of the loops and the states of the callbacks."""
        loops = copy.deepcopy(trainer.fit_loop.state_dict())
        loops["state_dict"] = {}  # The positions of loaders, which are read again.
        states = {item.state_key: copy.deepcopy(item.state_dict()) for item in trainer.callbacks}
        return {"loops": loops, "callbacks": {key: state for key, state in states.items() if state}}

    def _restore(self, trainer: Any, training: Training) -> None:
        """Give the counters of a checkpoint to the loops, and the states to the callbacks."""
        assert training.position is not None
        if training.position["next"] is None and not training.is_complete:
            raise Unsupported("Lightning cannot go on after its last step", hint="Fork from an earlier checkpoint.")
        counters = training.position["counters"]
        loops = copy.deepcopy(counters["loops"])
        # The next batch may be the last batch of its epoch, and is not done.
        loops[_BATCHES]["is_last_batch"] = loops[_BATCHES]["is_last_batch"] and training.is_complete
        trainer.fit_loop.load_state_dict(loops)
        for callback in trainer.callbacks:
            if state := counters["callbacks"].get(callback.state_key):
                callback.load_state_dict(copy.deepcopy(state))
        self._repeats = not training.is_complete

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if (training := self._training) is None:
            return
        active, fetcher = context.active(), _fetcher(trainer)
        assert active is not None
        # Lightning has put its own handler before, which ends the training without a checkpoint.
        active.stop.finish()
        active.stop.begin()
        for loader in _loaders(trainer):
            for owner in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
                if (announce := getattr(owner, "set_epoch", None)) is not None:
                    announce(trainer.current_epoch)
        training.begin_epoch()
        iter(fetcher)
        if self._repeats and training.position is not None:
            for _ in range(training.position["counters"]["loops"][_BATCHES]["current"]["completed"]):
                next(fetcher.iterator)
            # Lightning makes an iterator for the validation before it reads the batch.
            fetcher.iterator = training.continued(fetcher.iterator)
        self._is_begun = not self._repeats

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training is not None and not self._is_begun:
            self._training.begin_epoch()
        self._is_begun = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (training := self._training) is None:
            return
        is_first = not training.is_open or trainer.global_step > self._step
        self._step = trainer.global_step
        if self._repeats and training.position is not None:
            # The loops are where they were when the counters were read, but have counted the restart.
            trainer.fit_loop.load_state_dict(copy.deepcopy(training.position["counters"]["loops"]))
            trainer.fit_loop.epoch_loop.val_loop.restarting = False
            self._repeats = False
        training.read(batch, is_first=is_first)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        if self._training is not None:
            self._training.add_loss(loss)

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if self._training is not None:
            self._training.before_read()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._training is not None:
            self._training.enter_phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training is not None:
            self._training.enter_phase("step")
        if self._training is not None and not trainer.sanity_checking:
            self._training.before_read()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training is not None:
            self._training.finish()
