"""Limits of a resume from one checkpoint, which is as good as others otherwise: each is noticed when it is saved.

A checkpoint has no gradients. Gradients that no optimizer has used yet are lost. It is restored into the parameters and
groups that the script has when its session begins, and into buffers of the same shapes.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from m5ws.training.backends.base import Layout
from m5ws.training.observation import optimizer_values, watch

_NAMED = 3


class StepWatch:
    """Notes which optimizers a session's steps call. Knows nothing if the script is not observed."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._called: set[int] = set()
        """Ids of parameters that an optimizer has stepped in this attempt."""
        self._now: set[int] = set()
        """Ids of the parameters that the present step of the session has stepped."""

    def end_step(self) -> None:
        """Take in the optimizers that were called since the end of the step before."""
        called = (optimizer_values.parameters(optimizer) for optimizer in watch.take_called())
        self._now = {id(parameter) for parameters in called for parameter in parameters}
        self._called |= self._now

    def pending(self) -> Iterator[str]:
        """Yield a notice on each optimizer with gradients that it has not used in the step that has ended."""
        for number, optimizer in enumerate(self._optimizers, 1):
            ids = set(map(id, optimizer_values.parameters(optimizer)))
            # Calls in a function of torch.compile are not seen. They leave state.
            is_seen = watch.is_watching() and (bool(ids & self._called) or not optimizer.state)
            norm = optimizer_values.gradient_norm(optimizer) if is_seen and not ids & self._now else None
            # A gradient scaler skips a step with infinite gradients, and they are used up.
            if norm is not None and 0 < float(norm) < math.inf:
                yield (
                    f"this checkpoint lacks the gradients of optimizer {number} ({type(optimizer).__name__}), which it "
                    "has not used yet. A resume from it is exact only if the script clears them before the next "
                    "backward pass. Save after an optimizer step instead"
                )


def describe_change(begun: Layout, now: Layout) -> str:
    """Return a notice on a layout that differs from that at the beginning of the session."""
    changes = [
        f"{verb} {', '.join(sorted(names)[:_NAMED])}{' and others' if len(names) > _NAMED else ''}"
        for verb, names in (("has", now.tensors - begun.tensors), ("lacks", begun.tensors - now.tensors))
        if names
    ]
    if begun.groups != now.groups:
        changes.append(f"has groups of {_sizes(now)} parameters in its optimizers instead of {_sizes(begun)}")
    return (
        f"the training changed since its session began: it {' and '.join(changes)}. Its checkpoints can only be "
        "restored by a script that has the same parameters, buffers and groups when m5ws.session() is called"
    )


def _sizes(layout: Layout) -> str:
    return ", ".join(map(str, layout.groups)) or "no"
