"""Internals of Lightning's Trainer. Without them, a trainer has no checkpoint of its own, and trains to the end."""

from typing import Any


def has_checkpoint(trainer: Any) -> bool:
    """Return True if the script set `trainer.ckpt_path`."""
    return bool(getattr(trainer._checkpoint_connector, "_user_managed", False))


def is_trial(trainer: Any) -> bool:
    """Return True for a finder of `Tuner`, which ends `fit` before the training."""
    return any(getattr(callback, "_early_exit", False) for callback in trainer.callbacks)
