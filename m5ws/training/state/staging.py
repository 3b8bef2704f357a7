"""Copies of a state out of the training, in memory that the next checkpoint uses again.

A copy is all that the training waits for: hashing and sending read the copy, while later steps change the model.
On an accelerator the memory is pinned, and all copies of a state are waited for once.
"""

import os
from pathlib import Path
from typing import Protocol

import torch

_CGROUP = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Copier(Protocol):
    """What a backend hands its live tensors to."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these bits, contiguous, that the training will not change; `name` is its own."""


class Live:
    """Copies nothing: for a save that the training waits for."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class Buffers:
    """Host memory by name, kept from one checkpoint to the next. `size_bytes` is what it holds."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    @property
    def size_bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy; it is there after `wait`, for tensors of an accelerator."""
        held = self._held.get(name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._held[name] = held
        held.copy_(tensor.detach(), non_blocking=True)
        if tensor.device.type != "cpu":
            self._devices.add(tensor.device)
        return held

    def wait(self) -> None:
        """Wait until all copies that were begun are there."""
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()

    def clear(self) -> None:
        """Give the memory back."""
        self._held.clear()


class Copies:
    """Live tensors and their copies; finds the copy of what lies inside one of them."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._by_storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the copier's copy of a live tensor."""
        copy = self._copier.copy(name, tensor)
        self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((tensor, copy))
        return copy

    def within(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a live tensor: a view into one that was made before, if that holds its elements."""
        for live, copy in self._by_storage.get(tensor.untyped_storage().data_ptr(), ()):
            plain = live.is_contiguous() and tensor.is_contiguous() and live.dtype == tensor.dtype
            start = tensor.storage_offset() - live.storage_offset()
            if plain and start >= 0 and start + tensor.numel() <= live.numel():
                return copy.view(-1)[start : start + tensor.numel()].view(tensor.shape)
        return self.copy(name, tensor)


def available_bytes() -> int:
    """Return how much memory this machine, or the container around this process, can still give."""
    free = _PAGE_BYTES * os.sysconf("SC_AVPHYS_PAGES")
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            free = 1024 * int(line.split()[1])
    for limit, used in _CGROUP:
        try:
            free = min(free, int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return free
