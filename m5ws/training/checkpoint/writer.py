"""The checkpoints of a session: staged in memory, then saved in parallel to the training.

The training waits for the copy only: hashing and uploading read the copy, while later steps change the model.
Invariant: only one state is staged at a time, and each save is over before the next begins. The last checkpoint of an
attempt is saved before the training ends, and within the deadline after a request to stop. The thread's collectives use
a group of its own: every rank stages the same checkpoints in the same order.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from m5ws.environment.observe import hardware
from m5ws.errors import M5Error
from m5ws.records.launch import UNSAVED
from m5ws.training.backends.base import Backend, NoCopyStager, Plain
from m5ws.training.checkpoint import checkpointing
from m5ws.training.runtime import collectives
from m5ws.training.runtime.context import SAVE_THREAD, ActiveRank

_log = logging.getLogger(__name__)
_TRIES = 3
_FINAL_TRIES = 4
_NOTABLE_S = 1.0
_SHARE = 0.8
"""Part of the free memory that copies of a state may take; the training's own use varies."""


class TooManyFailures(M5Error):
    """Too many checkpoints in a row could not be saved."""

    hint = (
        "[checkpoint] failures in m5ws.toml sets the limit. `m5ws resume RUN` continues from the last saved checkpoint."
    )


class Saver:
    """Runs one save at a time. `failures`: limit of failed saves in a row; None: no limit."""

    def __init__(self, failures: int | None) -> None:
        self._limit = failures
        self._failed = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """True while a save is running."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, save: Callable[[], bool]) -> None:
        """Start a save in a thread; call `join` first. `save` returns True if the checkpoint was published."""
        assert not self.busy
        # A daemon: a failing script must not hang on a save whose other ranks are gone.
        self._thread = threading.Thread(target=self._run, args=(save,), name=SAVE_THREAD, daemon=True)
        self._thread.start()

    def run(self, save: Callable[[], bool]) -> bool:
        """Save at once, in this thread; call `join` first. Return True if the checkpoint was published."""
        published = save()
        self._failed = 0 if published else self._failed + 1
        return published

    def join(self, timeout_s: float | None = None) -> float:
        """Wait for the running save, if any, at most `timeout_s`; return the seconds waited.

        Raises the error that ended the save: Fenced, StateError; TooManyFailures.
        """
        began_s = time.perf_counter()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._thread = None
        waited_s = time.perf_counter() - began_s
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._limit is not None and self._failed >= self._limit:
            raise TooManyFailures(f"{self._failed} checkpoints in a row could not be saved")
        return waited_s

    def _run(self, save: Callable[[], bool]) -> None:
        try:
            self.run(save)
        except BaseException as error:  # noqa: BLE001  # `join` raises it in the training's thread
            _log.debug("a save ended", exc_info=True)
            self._error = error


class HostBuffers:
    """Host memory by name, kept from one checkpoint to the next. `size_bytes` is the size of all of it.

    For an accelerator the memory is pinned, and the training waits once for all copies of a state.
    """

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


class CheckpointWriter:
    """Stages and saves the states of one training; all methods are collective but `join`."""

    def __init__(self, active: ActiveRank, backend: Backend) -> None:
        self._active = active
        self._backend = backend
        self._saving = active.context.saving
        self._group = collectives.new_group()
        self._saver = Saver(self._saving.failures)
        self._buffers = HostBuffers()

    def raise_errors(self) -> None:
        """Raise the errors of a save that has ended, as `Saver.join` does."""
        if not self._saver.busy:
            self._saver.join()

    def join(self) -> None:
        """Wait for the running save, within the deadline for saves."""
        self._saver.join(self._saving.deadline_s)

    def join_last(self) -> None:
        """Wait for the running save; after a request to stop, within the rest of its deadline."""
        self._saver.join(self._left_s())

    def wait_for_previous(self, step: int, *, stopping: bool) -> bool:
        """Wait until the previous checkpoint is published; return False if the deadline is over before."""
        waited_s = self._saver.join(self._left_s() if stopping else None)
        if waited_s >= _NOTABLE_S:
            self._active.notice(
                "checkpoint-waited",
                f"the training was stopped for {waited_s:.1f} s after step {step}, until the previous checkpoint was "
                "saved",
                step,
            )
        if self._saver.busy:
            self._abandon(step)
            return False
        return True

    def save(self, step: int, common: dict[str, Plain], rank: dict[str, Plain], began_s: float, *, last: bool) -> None:
        """Stage the state after a step and save it: in parallel to the training, or, for the last, before returning.

        `common` and `rank` are as in `TrainingState`; `began_s` is the time at which the training was stopped.
        """
        beside = self._saving.asynchronous and not last and self._has_memory()
        staged = self._backend.stage(self._buffers if beside else NoCopyStager())
        self._buffers.wait()
        state = checkpointing.TrainingState(
            step, common, rank, self._active.spool.head, stalled_s=time.perf_counter() - began_s if beside else None
        )
        save = partial(
            checkpointing.save,
            self._active,
            staged,
            self._backend.format,
            self._group,
            state,
            Path(self._active.context.spool_dir).with_name(UNSAVED),
            tries=_FINAL_TRIES if last else _TRIES,
            is_last=last,
        )
        if beside:
            self._saver.begin(save)
        elif last:
            self._save_in_time(save, step)
        else:
            self._saver.run(save)
            self._saver.join()

    def _save_in_time(self, save: Callable[[], bool], step: int) -> None:
        """Save the last checkpoint; after a request to stop, within the deadline."""
        left_s = self._left_s()
        if left_s is None:
            self._saver.run(save)
            return
        self._saver.begin(save)
        self._saver.join(left_s)
        if self._saver.busy:
            self._abandon(step)

    def _left_s(self) -> float | None:
        return self._active.stop.seconds_left(self._saving.deadline_s)

    def _abandon(self, step: int) -> None:
        self._active.notice(
            "save-failed",
            f"the last checkpoint, after step {step}, was not saved in {self._saving.deadline_s:g} s "
            "([checkpoint] deadline_s) and is abandoned",
            step,
        )

    def _has_memory(self) -> bool:
        """Return True if memory has room for a copy of the state; publish one notice if it has not."""
        if self._buffers.size_bytes:
            return True
        needed = sum(piece.tensor.nbytes for piece in self._backend.tensors())
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        free = min(hardware.free_memory(Path("/")).values(), default=0)
        if needed * ranks <= _SHARE * free:
            return True
        self._active.notice_once(
            "memory",
            f"a copy of the state takes {needed >> 20} MiB on each of {ranks} ranks, {free >> 20} MiB are free: "
            "the training stops while a checkpoint is saved",
        )
        return False
