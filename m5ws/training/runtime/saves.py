"""Saves by torch.save that no request to end interrupts.

A signal ends a script by SystemExit. In the middle of torch.save that closes the file as a valid archive without some
of its tensors.
"""

import functools
from typing import Any

import torch

from m5ws.training.runtime.stop import StopRequest


def defer_stop(stop: StopRequest) -> None:
    """Let a request to end the script wait for the end of a call of torch.save in the main thread."""
    save = torch.save

    @functools.wraps(save)
    def save_whole(*arguments: Any, **options: Any) -> None:
        with stop.deferred():
            save(*arguments, **options)

    torch.save = torch.serialization.save = save_whole
