"""DeepSpeed's CPUAdam keeps state that no state_dict has; here it is known, and given back bit for bit.

The operator holds running fp32 products of the betas (csrc/includes/cpu_adam.h, `IncrementStep`). A new process
computes them by `pow` instead, which gives other bits at about four steps in ten. They are a function of where they
were last computed by `pow` (`anchor`) and of the calls since: that is recorded, and replayed.
"""

import struct
from dataclasses import dataclass
from typing import Any

from m5ws.training.backends.base import Plain
from m5ws.training.compat import cpu_adam


@dataclass(frozen=True)
class Products:
    """The operator's products: beta**anchor by `pow`, then one fp32 multiplication a step until `step`."""

    beta1: float
    beta2: float
    anchor: int
    step: int

    def after(self, step: int, beta1: float, beta2: float) -> "Products":
        """Return what `IncrementStep(step, beta1, beta2)` makes of these."""
        if beta1 != self.beta1 or beta2 != self.beta2:
            beta1, beta2 = _single(beta1), _single(beta2)
            if beta1 != self.beta1 or beta2 != self.beta2:
                return Products(beta1, beta2, step, step)
        if step == self.step:
            return self
        return Products(beta1, beta2, self.anchor if step == self.step + 1 else step, step)

    def plain(self) -> Plain:
        """Return these as plain data."""
        return {"beta1": self.beta1, "beta2": self.beta2, "anchor": self.anchor, "step": self.step}


def _single(value: float) -> float:
    """Return a number rounded to fp32, as the operator's arguments are."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


class Watched:
    """A DeepSpeedCPUAdam's products, as they are after every update so far."""

    def __init__(self, products: Products) -> None:
        self.products = products

    def __call__(self, step: int, beta1: float, beta2: float) -> None:
        self.products = self.products.after(step, beta1, beta2)


def watch(optimizer: Any) -> Watched:
    """Follow a DeepSpeedCPUAdam's products from now on.

    If it has taken steps already, its products are made those of a run that took them all in this process.
    """
    known = cpu_adam.followed(optimizer)
    if known is not None and isinstance(known.follow, Watched):
        return known.follow
    beta1, beta2 = optimizer.defaults["betas"]
    watched = Watched(Products(_single(beta1), _single(beta2), 0, 0))
    cpu_adam.follow(optimizer, watched)
    steps = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    if steps:
        groups = {tuple(map(_single, group["betas"])) for group in optimizer.param_groups}
        beta1, beta2 = map(_single, optimizer.param_groups[-1]["betas"])
        # Groups with different betas overwrite each other's products, and all are computed by `pow`.
        anchor = 0 if len(groups) == 1 and len(set(steps)) == 1 else steps[-1]
        restore(optimizer, Products(beta1, beta2, anchor, steps[-1]))
    return watched


def restore(optimizer: Any, products: Products) -> None:
    """Give the operator the products that `products` describes, bit for bit: about 1 µs a step since its anchor."""
    watched = watch(optimizer)
    cpu_adam.replay(cpu_adam.empty_update(optimizer), products.beta1, products.beta2, products.anchor, products.step)
    watched.products = products


def from_plain(value: Plain) -> Products:
    """Return what `Products.plain` gave."""
    return Products(**value)
