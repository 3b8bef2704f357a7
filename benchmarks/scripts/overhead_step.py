"""FSDP2 training with steps of about 100 ms; writes when each step's body began and ended.

Usage: torchrun --standalone --nproc-per-node 2 overhead_step.py OUT STEPS {bare,deterministic,session}
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from m5ws.records.environment import Determinism
from m5ws.training import determinism

out, steps, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if mode == "deterministic":
    determinism.apply(Determinism())
dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(4)))
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
times: list[tuple[float, float]] = []
used: list[tuple[float, int]] = []
"""CPU seconds of this rank, and the moments at which another process took its processor, after each step."""


def body() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(384, 768)
    loss = model(x).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used.append((usage.ru_utime + usage.ru_stime, usage.ru_nivcsw))
    return loss, norm


if mode != "session":
    for _ in range(steps):
        began = time.time()
        body()
        times.append((began, time.time()))
else:
    import m5ws

    session = m5ws.session(model, optimizer, total_steps=steps)
    for step in session.steps():
        began = time.time()
        loss, norm = body()
        step.record(loss=loss, grad_norm=norm, lr=1e-3, tokens=768)
        times.append((began, time.time()))
if int(os.environ.get("RANK", "0")) == 0:
    out.write_text(json.dumps({"times": times, "used": used}))
dist.destroy_process_group()
