"""State of DeepSpeed's CPUAdam that no state_dict contains, recorded and restored bit for bit.

The operator holds running fp32 powers of the betas (csrc/includes/cpu_adam.h, `IncrementStep`). A new process computes
them by `pow` instead, which gives other bits at about four steps in ten. They are a function of the step at which they
were last computed by `pow` (`anchor`) and of the calls since. That is recorded, and replayed.
"""

import struct
from dataclasses import dataclass
from typing import Any

from m5ws.training.compat import cpu_adam


@dataclass(frozen=True)
class BetaPowers:
    """The operator's powers: beta**anchor by `pow`, then one fp32 multiplication a step until `step`."""

    beta1: float
    beta2: float
    anchor: int
    step: int

    def after(self, step: int, beta1: float, beta2: float) -> "BetaPowers":
        """Return the powers after `IncrementStep(step, beta1, beta2)`."""
        if beta1 != self.beta1 or beta2 != self.beta2:
            beta1, beta2 = _single(beta1), _single(beta2)
            if beta1 != self.beta1 or beta2 != self.beta2:
                return BetaPowers(beta1, beta2, step, step)
        if step == self.step:
            return self
        return BetaPowers(beta1, beta2, self.anchor if step == self.step + 1 else step, step)


def _single(value: float) -> float:
    """Return a number rounded to fp32, as the operator's arguments are."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


class TrackedCPUAdam:
    """The beta powers of a DeepSpeedCPUAdam, up to date after every update."""

    def __init__(self, powers: BetaPowers) -> None:
        self.powers = powers

    def __call__(self, step: int, beta1: float, beta2: float) -> None:
        self.powers = self.powers.after(step, beta1, beta2)


def track(optimizer: Any) -> TrackedCPUAdam:
    """Track the beta powers of a DeepSpeedCPUAdam from now on.

    If it has taken steps already, its powers are set as in a run that took all steps in this process.
    """
    known = cpu_adam.followed(optimizer)
    if known is not None and isinstance(known.follow, TrackedCPUAdam):
        return known.follow
    beta1, beta2 = optimizer.defaults["betas"]
    tracked = TrackedCPUAdam(BetaPowers(_single(beta1), _single(beta2), 0, 0))
    cpu_adam.follow(optimizer, tracked)
    steps = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    if steps:
        groups = {tuple(map(_single, group["betas"])) for group in optimizer.param_groups}
        beta1, beta2 = map(_single, optimizer.param_groups[-1]["betas"])
        # Groups with different betas overwrite each other's powers, and all are computed by `pow`.
        anchor = 0 if len(groups) == 1 and len(set(steps)) == 1 else steps[-1]
        restore(optimizer, BetaPowers(beta1, beta2, anchor, steps[-1]))
    return tracked


def restore(optimizer: Any, powers: BetaPowers) -> None:
    """Set the operator's powers to `powers`, bit for bit. This takes about 1 µs for each step since the anchor."""
    tracked = track(optimizer)
    cpu_adam.replay(cpu_adam.empty_update(optimizer), powers.beta1, powers.beta2, powers.anchor, powers.step)
    tracked.powers = powers
