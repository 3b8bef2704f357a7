"""Losses of Hugging Face's Trainer, as it logs them.

The loss that a model returns there is a part of the step's: divided by the numbers of processes and of batches whose
gradients are accumulated. The Trainer passes the loss of a batch, divided by the latter alone, to
`Accelerator.backward`, which makes the step too with DeepSpeed.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from m5ws.training.frameworks import after_import
from m5ws.training.runtime import context


def install() -> None:
    """Pass the losses of each Trainer on, once the script imports it."""
    after_import.change("transformers.trainer", _pass_on)


def _pass_on(module: ModuleType) -> None:
    original: Callable[..., Any] = module.Trainer.training_step

    @functools.wraps(original)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        backward, active = self.accelerator.backward, context.active()
        # The script may have replaced the method itself.
        before = vars(self.accelerator).get("backward")

        def with_listeners(loss: Any, *args: Any, **kwargs: Any) -> Any:
            for listen in active.loss_listeners if active is not None else ():
                # The mean of a step's batches is then the loss of the step.
                listen(loss.detach() * batches)
            return backward(loss, *args, **kwargs)

        self.accelerator.backward = with_listeners
        try:
            return original(self, *args, **kwargs)
        finally:
            # Unless the script replaced it within the step.
            if vars(self.accelerator).get("backward") is with_listeners:
                del self.accelerator.backward
                if before is not None:
                    self.accelerator.backward = before

    module.Trainer.training_step = training_step
