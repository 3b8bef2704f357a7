"""Entry points by which Lightning's Trainers get the callback of `lightning_state`.

Lightning calls them for each Trainer, in any process whose environment has m5ws. So this module imports nothing, and
outside ranks it returns no callback. https://lightning.ai/docs/pytorch/stable/extensions/entry_points.html
"""

import sys
from typing import Any

_STATE = "m5ws.training.frameworks.lightning_state"


def lightning_callbacks() -> list[Any]:
    """Return the callbacks for a Trainer of the package `lightning`."""
    return _callbacks("lightning.pytorch")


def pytorch_lightning_callbacks() -> list[Any]:
    """Return the callbacks for a Trainer of the package `pytorch_lightning`."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    state = sys.modules.get(_STATE)
    callbacks: list[Any] = state.callbacks(package) if state is not None else []
    return callbacks
