"""Copies of a state out of the training, in memory that the next checkpoint uses again.

The training waits for the copy only: hashing and uploading read the copy, while later steps change the model. On an
accelerator the memory is pinned, and the training waits once for all copies of a state.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

_CGROUP = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stager(Protocol):
    """Copies a backend's live tensors."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor with these bits that the training will not change; `name` is unique."""


class NoCopyStager:
    """Copies nothing: for a save that the training waits for."""

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class HostBuffers:
    """Host memory by name, kept from one checkpoint to the next. `size_bytes` is the size of all of it."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    @property
    def size_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy. A copy from an accelerator is complete after `wait`."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._buffers[name] = buffer
        buffer.copy_(tensor.detach(), non_blocking=True)
        if tensor.device.type != "cpu":
            self._devices.add(tensor.device)
        return buffer

    def wait(self) -> None:
        """Wait until all copies that were begun are complete."""
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()


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


class HostCopies:
    """Live tensors and their copies, with the copies of tensors that share memory with a copied tensor."""

    def __init__(self, copier: Stager) -> None:
        self._copier = copier
        self._by_storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stager's copy of a live tensor."""
        copy = self._copier.copy(name, tensor)
        self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append((tensor, copy))
        return copy

    def within(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a live tensor: a view into an earlier copy, if that contains its elements."""
        for live, copy in self._by_storage.get(tensor.untyped_storage().data_ptr(), ()):
            plain = live.is_contiguous() and tensor.is_contiguous() and live.dtype == tensor.dtype
            start = tensor.storage_offset() - live.storage_offset()
            if plain and start >= 0 and start + tensor.numel() <= live.numel():
                return copy.view(-1)[start : start + tensor.numel()].view(tensor.shape)
        return self.copy(name, tensor)


def available_bytes() -> int:
    """Return the free memory of this machine, or of the container around this process."""
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
