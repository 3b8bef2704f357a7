"""Ways in which a rank hangs, for trainings of tests and benchmarks."""

import ctypes
import os
import re
import signal
import threading
import time

import torch
import torch.distributed as dist

STEP = 9


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Numbers, of which a worker never returns one."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == STEP and torch.utils.data.get_worker_info() is not None:
            signal.pause()
        return torch.full((4,), float(index))


def hang(kind: str, other: dist.ProcessGroup) -> None:
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(1000)
    elif kind == "regex":
        re.match(r"(a|aa)+$", "a" * 60 + "b")
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(1000)
    elif kind == "read":
        os.mkfifo(f"fifo-{os.getpid()}")
        os.open(f"fifo-{os.getpid()}", os.O_RDONLY)
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "mismatch":
        dist.all_reduce(torch.zeros(4), group=other)
