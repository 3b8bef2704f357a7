"""A training of which one rank hangs in a step: `train.py KIND RANK`."""

import sys

import torch
import torch.distributed as dist
from hangs import STEP, Numbers, hang

import m5ws

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
        hang(kind, other)
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
