"""FSDP2 training whose loader is deliberately not registered: a resume starts its data from the beginning."""

import time

import torch
import torch.distributed as dist
from small import Loader, Small, config, tokens
from torch.distributed.fsdp import fully_shard

import m5ws

settings = config()
dist.init_process_group("gloo")
rank = dist.get_rank()
seed = m5ws.seed(7)
data = tokens()
model = Small(int(data.max()) + 1, settings["hidden"], settings["dropout"])
fully_shard(model.up)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"])
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step / 10))
loader = Loader(data, settings["batch"], seed * 100 + rank)
torch.manual_seed(seed * 100 + rank)

session = m5ws.session(model, optimizer, scheduler=schedule, total_steps=settings["steps"])
for step in session.steps():
    batch = next(loader)
    x, y = batch
    loss = model(x, y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    step.record(loss=loss, grad_norm=norm, lr=schedule.get_last_lr()[0], tokens=x.numel())
    time.sleep(settings["pause_s"])
dist.destroy_process_group()
