"""Internals of DeepSpeed's CPUAdam: its compiled operator, and the operator's powers of the betas.

https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/csrc/includes/cpu_adam.h (`IncrementStep`)
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from m5ws.training.compat.facts import Fact

_PROBE = 2**30
"""An optimizer number that no training uses."""
_BETAS = (0.9, 0.999)

Update = Callable[[int, float, float], None]
"""A call with the step and the two betas of an update. An update of no elements changes the powers alone."""


class OperatorProxy:
    """Replaces an optimizer's operator, and calls `follow` before each update.

    An update uses all cores of its rank. Each element is computed from its own values alone, so the number of threads
    changes no bits, unlike in torch's sums.
    """

    def __init__(self, compiled: Any, follow: Update) -> None:
        self.compiled = compiled
        self.follow = follow
        self._update = compiled.adam_update
        self._threads = cores_of_rank()

    def adam_update(self, number: int, step: int, lr: float, beta1: float, beta2: float, *rest: Any) -> Any:
        self.follow(step, beta1, beta2)
        threads = torch.get_num_threads()
        if self._threads <= threads:
            return self._update(number, step, lr, beta1, beta2, *rest)
        torch.set_num_threads(self._threads)
        try:
            return self._update(number, step, lr, beta1, beta2, *rest)
        finally:
            torch.set_num_threads(threads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


def cores_of_rank() -> int:
    """Return this rank's share of the cores that its process may use."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def followed(optimizer: Any) -> OperatorProxy | None:
    """Return the proxy of the operator in a DeepSpeedCPUAdam; None before `follow`."""
    operator = optimizer.ds_opt_adam
    return operator if isinstance(operator, OperatorProxy) else None


def follow(optimizer: Any, follower: Update) -> None:
    """Call `follower` before each update of the optimizer."""
    optimizer.ds_opt_adam = OperatorProxy(_compiled(optimizer), follower)


def _compiled(optimizer: Any) -> Any:
    proxy = followed(optimizer)
    return optimizer.ds_opt_adam if proxy is None else proxy.compiled


def empty_update(optimizer: Any) -> Update:
    """Return a function that updates no elements of an optimizer; the follower is not called."""
    return _empty_update(_compiled(optimizer), optimizer.opt_id, optimizer.defaults["eps"])


def _empty_update(compiled: Any, number: int, eps: float) -> Update:
    no_elements = [torch.empty(0) for _ in range(4)]

    def update(step: int, beta1: float, beta2: float) -> None:
        compiled.adam_update(number, step, 0.0, beta1, beta2, eps, 0.0, True, *no_elements)

    return update


def replay(update: Update, beta1: float, beta2: float, anchor: int, step: int) -> None:
    """Set the powers to `pow` at `anchor`, followed by one multiplication a step until `step`."""
    # After any other betas, the update at the anchor calls `pow`.
    update(1, 0.0 if beta1 else 0.5, beta2)
    for number in range(anchor, step + 1):
        update(number, beta1, beta2)


def builders() -> Iterator[Any]:
    """Yield the builders of the operators that an engine loads: of CPUAdam, and on a CPU of `init_distributed`."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops.op_builder import CPUAdamBuilder

    yield CPUAdamBuilder()
    if get_accelerator().device_name() == "cpu":
        yield get_accelerator().create_op_builder("ShareMemCommBuilder")


def facts(optimizer: Any) -> tuple[Fact, ...]:
    """Return the facts about a DeepSpeedCPUAdam."""
    name = "adam_update moves the products of the betas as IncrementStep of 0.19 does"
    return (
        Fact("deepspeed", "DeepSpeedCPUAdam.ds_opt_adam.adam_update", lambda: _compiled(optimizer).adam_update),
        Fact("deepspeed", "DeepSpeedCPUAdam.opt_id", lambda: type(optimizer.opt_id) is int),
        Fact("deepspeed", name, lambda: moves_as_replayed(_compiled(optimizer))),
    )


_WALKS: tuple[tuple[tuple[int, ...], int], ...] = (
    (tuple(range(1, 30)), 0),  # One multiplication a step.
    (tuple(step for step in range(1, 7) for _ in range(2)), 0),  # The same step a second time changes nothing.
    ((1, 2, 20, 21, 22), 20),  # After a jump, `pow`.
)
"""Steps of updates, and the anchor of the powers after them."""


def moves_as_replayed(compiled: Any) -> bool:
    """Return True if a replay gives the same powers, bit for bit, as the updates themselves."""
    return all(_bits(compiled, steps, None) == _bits(compiled, steps, anchor) for steps, anchor in _WALKS)


def _bits(compiled: Any, steps: Sequence[int], anchor: int | None) -> bytes:
    """Return the bits of a parameter after one update that follows these steps or their replay."""
    with _optimizer(compiled) as number:
        update = _empty_update(compiled, number, 1e-8)
        if anchor is None:
            for step in steps:
                update(step, *_BETAS)
        else:
            replay(update, *_BETAS, anchor, steps[-1])
        values = [torch.full((1,), value) for value in (0.0, 0.3, 0.0, 0.0)]
        compiled.adam_update(number, steps[-1] + 1, 1.0, *_BETAS, 1e-8, 0.0, True, *values)
        return values[0].numpy().tobytes()


@contextmanager
def _optimizer(compiled: Any) -> Iterator[int]:
    compiled.create_adam(_PROBE, 1.0, *_BETAS, 1e-8, 0.0, True, False)
    try:
        yield _PROBE
    finally:
        compiled.destroy_adam(_PROBE)
