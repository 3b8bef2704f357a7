"""Trains the templates' GPT on random tokens, and prints seconds and CPU seconds a step as JSON.

Usage: strictness_step.py ROW DTYPE STEPS THREADS WIDTH DEVICE, with the variables of the row's level set.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from m5ws.training import determinism

sys.path.insert(0, str(Path(__file__).parents[2] / "templates" / "gpt"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from model import GPT
from strictness import BATCH, LENGTH, determinism_of

row, dtype = sys.argv[1], getattr(torch, sys.argv[2])
steps, threads, width = map(int, sys.argv[3:6])
device = torch.device(sys.argv[6])
if row == "pinned":  # The variables of "portable", and torch's own square root.
    determinism.apply(determinism_of("strict", threads))
    determinism.require()
else:
    determinism.apply(determinism_of(row, threads))
torch.manual_seed(1)
model = GPT(vocabulary=2048, length=LENGTH, layers=4, heads=4, width=width, dropout=0.1).to(device, dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
walls, cpus = [], []
for _ in range(steps):
    began, before = time.perf_counter(), time.process_time()
    ids = torch.randint(0, 2048, (BATCH, LENGTH + 1), device=device)
    model(ids[:, :-1], ids[:, 1:]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    walls.append(time.perf_counter() - began)
    cpus.append(time.process_time() - before)
half = steps // 2
print(json.dumps({"step_s": statistics.median(walls[half:]), "cpu_s": statistics.median(cpus[half:])}))
