"""Internals of Lightning's Trainer. Without them, a trainer has no checkpoint of its own, and trains to the end."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COUNT = "_batches_that_stepped"


def has_checkpoint(trainer: Any) -> bool:
    """Return True if the script set `trainer.ckpt_path`."""
    return bool(getattr(trainer._checkpoint_connector, "_user_managed", False))


def is_trial(trainer: Any) -> bool:
    """Return True for a finder of `Tuner`, which ends `fit` before the training."""
    return any(getattr(callback, "_early_exit", False) for callback in trainer.callbacks)


def logged_steps(trainer: Any) -> int | None:
    """Return the step under which the Trainer logs its next values; None without this internal."""
    return getattr(trainer.fit_loop.epoch_loop, _COUNT, None)


def finish_epoch(trainer: Any, logged: int) -> None:
    """End an epoch whose checkpoint was saved in `on_train_epoch_end`, so that the next one begins.

    Without this, Lightning 2.6 ends such an epoch a second time if the Trainer has `max_steps`: it counts the epoch, on
    which the order of a DistributedSampler depends, and the step of its logs twice. A schedule by `ReduceLROnPlateau`
    would be updated here. It needs a metric that no checkpoint has, and is not.
    Source: `FitLoop.on_advance_end` in lightning/pytorch/loops/fit_loop.py.
    """
    loop = trainer.fit_loop
    epochs = loop.epoch_progress
    epochs.current.completed = epochs.current.processed
    epochs.total.completed = epochs.total.processed
    # As after an epoch: the loops do not restart any more. Older versions have the attribute alone.
    for each in (loop, loop.epoch_loop):
        each._restarting = False
        if hasattr(each, "on_iteration_done"):
            each.on_iteration_done()
    setattr(loop.epoch_loop, _COUNT, logged)


def restore_saves(trainer: Any, states: Mapping[str, Any]) -> None:
    """Restore the current score and the step of the last save of each `ModelCheckpoint`, which Lightning does not.

    `states` are those of the callbacks in the checkpoint. Without the step, the callback saves the same step once more,
    after a batch whose gradients are accumulated. So the step is set for the callback that saved the checkpoint: its
    state names the file.
    """
    file = os.path.join(*Path(os.path.abspath(str(trainer.ckpt_path))).parts[-2:])
    for callback in trainer.checkpoint_callbacks:
        state = states.get(getattr(callback, "state_key", ""))
        if not isinstance(state, Mapping):
            continue
        if getattr(callback, "current_score", 0) is None:
            callback.current_score = state.get("current_score")
        saved = (*state.get("best_k_models", ()), state.get("best_model_path"), state.get("last_model_path"))
        # The work directory may be another one.
        if any(os.path.join(*Path(str(path)).parts[-2:]) == file for path in saved if path):
            callback._last_global_step_saved = trainer.global_step
