"""Loss, gradient norm and learning rate with their exact bits, read without waiting for the device.

A value on an accelerator is copied to pinned memory on its own stream and read a step later, when the copy is long
done: the host never waits for the device.
"""

from collections.abc import Callable

import torch

from m5ws.records.exact import encode

Reader = Callable[[], str]


def take(name: str, value: object) -> Reader | str:
    """Return a scalar's exact text, or a function that returns it later. Raises TypeError if it is not one number.

    A DTensor (the result of `clip_grad_norm_` under FSDP2) is reduced first, which is a collective.
    """
    if isinstance(value, torch.Tensor):
        return _tensor(name, value.detach())
    if isinstance(value, (bool, int, float)) or hasattr(value, "__float__"):
        return encode(float(value))
    raise TypeError(f"step.record({name}=…) takes a number or a tensor of one element, not {type(value).__qualname__}")


def _tensor(name: str, value: torch.Tensor) -> Reader | str:
    if value.numel() != 1:
        raise TypeError(f"step.record({name}=…) takes a tensor of one element, not of {tuple(value.shape)}")
    full = getattr(value, "full_tensor", None)
    if full is not None:
        value = full()
    if value.device.type == "cpu":
        return encode(float(value.item()))
    read = read_later(value)
    return lambda: encode(float(read().item()))


def read_later(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Copy a tensor to the host; return a function that waits for the copy. The training does not wait for a GPU."""
    if tensor.device.type != "cuda":
        copied = tensor.to("cpu", copy=True)
        return lambda: copied
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def read() -> torch.Tensor:
        done.synchronize()
        return pinned

    return read
