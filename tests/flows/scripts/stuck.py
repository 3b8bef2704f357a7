"""A training of which one rank hangs in a step: `train.py KIND RANK`."""

import ctypes
import os
import re
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import m5ws

STEP = 9


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == STEP and torch.utils.data.get_worker_info() is not None:
            signal.pause()
        return torch.full((4,), float(index))


def hang() -> None:
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(1000)
    elif kind == "regex":
        re.match(r"(a|aa)+$", "a" * 60 + "b")
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(1000)
    elif kind == "read":
        os.mkfifo(f"fifo-{rank}")
        os.open(f"fifo-{rank}", os.O_RDONLY)
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "mismatch":
        dist.all_reduce(torch.zeros(4), group=other)


kind, culprit = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
other = dist.new_group()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
workers = 1 if kind == "worker" and rank == culprit else 0
loader = iter(torch.utils.data.DataLoader(Numbers(), num_workers=workers))
session = m5ws.session(model, optimizer, total_steps=STEP + 3)
for step in session.steps():
    if step.number == STEP and rank == culprit:
        hang()
    batch = next(loader)
    loss = model(batch).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    if step.number == 2:
        with step.phase("evaluation"):
            dist.barrier()
    step.record(loss=loss)
