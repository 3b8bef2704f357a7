"""Readings of an optimizer: its settings, parameters, gradients and number of steps."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from m5ws.training.observation import samples


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of all groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def places(optimizer: torch.optim.Optimizer) -> set[tuple[int, int]]:
    """Return the first parameter of each group: ZeRO calls an optimizer several times a step, each time with others."""
    return {(id(optimizer), id(group["params"][0])) for group in optimizer.param_groups if group["params"]}


def settings(group: dict[str, Any]) -> str:
    """Return the settings of a parameter group as exact text, without tensors, whose device would be waited for.

    The text has one order of the names: `load_state_dict` changes it.
    """
    values = {name: _plain(value) for name, value in sorted(group.items()) if name != "params"}
    return f"{len(group['params'])} {values!r}"


def _plain(value: Any) -> Any:
    """Return a plain value itself, and the type of any other value, whose text may have an address in memory."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else type(value).__qualname__


def creates_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return True for a step that changes no parameter and creates the optimizer's state.

    torch.distributed.checkpoint makes one before it loads an optimizer: with zeros as gradients and learning rates.
    """
    groups = optimizer.param_groups
    return (
        not optimizer.state
        and all("lr" in group and not bool(group["lr"]) for group in groups)
        and not any(
            bool(samples.local(p.grad).any()) for group in groups for p in group["params"] if p.grad is not None
        )
    )


def updates(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the number of steps in an optimizer's state, None if it does not count them."""
    values = [state["step"] for state in optimizer.state.values() if isinstance(state, Mapping) and "step" in state]
    counts = [int(value) for value in values if isinstance(value, int | float) or _is_scalar(value)]
    return max(counts, default=None)


def updates_of_first(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the number of steps of the first parameter with a state, None if that does not have it on the host."""
    for parameter in parameters(optimizer):
        state: Any = optimizer.state.get(parameter)
        if state:
            value: Any = state.get("step") if isinstance(state, Mapping) else None
            is_on_host = isinstance(value, int | float) or (_is_scalar(value) and value.is_cpu)
            return int(value) if is_on_host else None
    return None


def is_skipped(optimizer: torch.optim.Optimizer) -> bool | None:
    """Return True for a call that changes nothing, because a gradient scaler found an overflow. None if it may be one.

    A fused optimizer is called then too, with the scaler's finding. On a device, reading that would wait.
    """
    found = getattr(optimizer, "found_inf", None)
    if not isinstance(found, torch.Tensor):
        return False
    return bool(found) if found.device.type == "cpu" else None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


@torch.no_grad()
def gradient_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """Return the norm of the gradients of an optimizer that this rank holds, None if it has none."""
    found = (parameter.grad for parameter in parameters(optimizer))
    gradients = [samples.local(gradient) for gradient in found if gradient is not None]
    dense = [gradient for gradient in gradients if gradient.layout == torch.strided]
    return torch.nn.utils.get_total_norm(dense) if dense else None
