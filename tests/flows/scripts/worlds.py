"""FSDP2 training in which any number of ranks does the same work: each takes its part of one batch."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import m5ws

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
m5ws.seed(7)
model = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = m5ws.session(model, optimizer, total_steps=6)
for step in session.steps():
    whole = torch.randn(8, 12, generator=torch.Generator().manual_seed(step.number))
    loss = model(whole.chunk(world)[rank]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    step.record(loss=shown / world)
dist.destroy_process_group()
