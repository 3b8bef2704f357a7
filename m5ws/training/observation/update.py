"""An observed step: the optimizers that were called, and the values of its record."""

import time
import weakref
from dataclasses import dataclass, field
from typing import Any

import blake3
import torch

from m5ws.records.ledger import State, Step
from m5ws.training.observation import optimizer_values, place, samples
from m5ws.training.observation.forwards import Forwards
from m5ws.training.state import rng, scalars


@dataclass
class Call:
    """A call of an optimizer's step: the settings and the learning rate before it."""

    settings: str = ""
    rate: Any = None
    calls_another: bool = False
    creates_state: bool = False


@dataclass
class Update:
    """A step whose optimizers have been called."""

    forwards: Forwards
    updated: set[tuple[int, int]] = field(default_factory=set)
    optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = field(default_factory=dict)
    state: State | None = None
    labels: set[str] = field(default_factory=set)
    is_recorded: bool = False
    is_whole: bool = False
    """Without it, a signal ended the script while the values of an optimizer were read."""
    number: int = 0
    """The number of the step. 0: it is not recorded, or a signal ended the script while it was."""
    has_new: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    quantities: dict[str, scalars.Reader | str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    backwards: int = 0

    def add(
        self, optimizer: torch.optim.Optimizer, label: str, call: Call, loss: torch.Tensor | None, count: int | None
    ) -> None:
        """Add the values of an optimizer that was called `count` times. With ZeRO, gradients have padding, no norm."""
        suffix = label.removeprefix("optimizer")
        self.settings.setdefault(label, blake3.blake3()).update(call.settings.encode())
        if call.rate is not None:
            self.quantities[f"lr{suffix}"] = scalars.take("lr", call.rate)
        if loss is not None:
            self.quantities[f"loss{suffix}"] = scalars.take("loss", loss)
        if count is not None:
            self.counts[label] = count
        if self.forwards.engine() is None and (norm := optimizer_values.gradient_norm(optimizer)) is not None:
            self.quantities[f"grad_norm{suffix}"] = scalars.take("grad_norm", norm)

    def event(self, time_s: float, seconds: float) -> Step:
        """Return the record of the step without its number. Waits for copies from a device."""
        forwards = self.forwards
        digests = {place.settings(label): digest.hexdigest() for label, digest in self.settings.items()}
        if forwards.count:
            digests["output"] = samples.digest(forwards.outputs, forwards.count)
        return Step(
            time_s=time_s,
            step=0,
            quantities={name: value if isinstance(value, str) else value() for name, value in self.quantities.items()},
            batch=samples.digest(forwards.inputs, forwards.count) if forwards.inputs else None,
            digests=digests,
            updates=self.counts,
            passes=forwards.count + self.backwards,
            seconds=seconds,
        )


class Counts:
    """The numbers of updates of the optimizers of a process, by their labels; None if an optimizer does not count."""

    def __init__(self) -> None:
        self.numbers: dict[str, int | None] = {}
        self._firsts: dict[str, int | None] = {}
        """The number of updates of each optimizer's first parameter. A script may reset the state."""

    def add(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Count an update. The first update of an attempt, and after a reset, is read from the optimizer's state."""
        before, of_first = self._firsts.get(label), optimizer_values.updates_of_first(optimizer)
        self._firsts[label] = of_first
        is_reset = before is not None and of_first is not None and of_first <= before
        if label not in self.numbers or is_reset:
            self.numbers[label] = optimizer_values.updates(optimizer)
        elif (known := self.numbers[label]) is not None:
            self.numbers[label] = known + 1


def record_state(tensors: dict[str, str]) -> State:
    """Return the record of a state without its step."""
    return State(time_s=time.time(), step=0, tensors=tensors, generators=rng.digests(rng.capture({})))
