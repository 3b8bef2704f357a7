"""Interruption of a rank by SIGKILL, as by a crash: after a step, or in the middle of a save.

Most scripts and frameworks save by torch.save. So it is replaced, and a later call kills the process when half of the
bytes are written. A save that first writes to memory, or to a file of another name, is interrupted there.
"""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

_SMALL = 0.5
"""Saves of less than this part of the largest one so far are no checkpoints."""


def kill_rank() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be handled")


class KillInSave:
    """Kills this process in the middle of a save of a checkpoint, once `is_armed` is set.

    `announce` is called with the name of the file.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self.is_armed = False
        self._announce = announce
        self._largest = 0
        self._save = torch.save
        torch.save = self._save_or_kill

    def _save_or_kill(self, obj: object, f: Any, *arguments: Any, **options: Any) -> None:
        if not self.is_armed:
            self._save(obj, f, *arguments, **options)
            if isinstance(f, str | os.PathLike):
                self._largest = max(self._largest, os.path.getsize(f))
            return
        whole = io.BytesIO()
        self._save(obj, whole, *arguments, **options)
        if whole.tell() < _SMALL * self._largest:
            self._save(obj, f, *arguments, **options)
            return
        self._announce(str(f) if isinstance(f, str | os.PathLike) else "a file object")
        half = whole.getvalue()[: whole.tell() // 2]
        if isinstance(f, str | os.PathLike):
            Path(f).write_bytes(half)
        else:
            f.write(half)
            f.flush()
        kill_rank()
