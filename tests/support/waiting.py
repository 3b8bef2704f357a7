"""Waits for conditions that other processes bring about."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_LIMIT_S = 300.0
_Value = TypeVar("_Value")


def wait_for(condition: Callable[[], _Value | None]) -> _Value:
    """Return the first true value of a condition. Fail if it has none within five minutes."""
    end_s = time.monotonic() + _LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < end_s, "the condition did not become true"
        time.sleep(0.05)
    return value


def is_alive(pid: int) -> bool:
    """Return True if a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
