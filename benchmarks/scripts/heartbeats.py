"""A training under `ft_launcher` of which one rank hangs at a step: `heartbeats.py KIND RANK`.

`tests/flows/scripts/stuck.py` has equal stops. Each rank sends a heartbeat after each step, as NVIDIA's
example does. The hanging rank prints the time at which it stops.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from datetime import timedelta

import nvidia_resiliency_ext.fault_tolerance as ft
import torch
import torch.distributed as dist

_STEP, _STEPS = 9, 12


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Numbers, of which one is never read by a worker."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == _STEP and torch.utils.data.get_worker_info() is not None:
            signal.pause()
        return torch.full((4,), float(index))


def hang(kind: str, other: dist.ProcessGroup) -> None:
    print(f"STOPS {time.time()}", flush=True)
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


def main() -> None:
    kind, culprit = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank, other = dist.get_rank(), dist.new_group()
    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    model = torch.nn.Linear(4, 1)
    workers = 1 if kind == "worker" and rank == culprit else 0
    loader = iter(torch.utils.data.DataLoader(Numbers(), num_workers=workers))
    for step in range(_STEPS):
        if step == _STEP and rank == culprit:
            hang(kind, other)
        model(next(loader)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        client.send_heartbeat()
        time.sleep(0.2)
    client.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
