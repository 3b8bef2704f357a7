"""Interruption of a rank by SIGKILL, as by a crash: after a step, or in the middle of a save.

Most scripts and frameworks save by torch.save. So it is replaced, and its next call kills the process when half of the
bytes are written. A save that first writes to memory, or to a file of another name, is interrupted there.
"""

import io
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import torch


def kill_rank() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be handled")


def kill_in_next_save() -> None:
    """Let the next call of torch.save in this process write half of its bytes, and kill the process."""
    save = torch.save

    def save_half(obj: object, f: Any, *arguments: Any, **options: Any) -> NoReturn:
        whole = io.BytesIO()
        save(obj, whole, *arguments, **options)
        half = whole.getvalue()[: whole.tell() // 2]
        if isinstance(f, str | os.PathLike):
            Path(f).write_bytes(half)
        else:
            f.write(half)
            f.flush()
        kill_rank()

    torch.save = save_half
