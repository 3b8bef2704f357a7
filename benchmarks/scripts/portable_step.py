"""Trains the templates' GPT on random tokens, and prints seconds and CPU seconds a step as JSON.

Usage: portable_step.py {strict,pinned,portable} DTYPE STEPS THREADS WIDTH, with the level's variables set. "pinned" has
the variables of "portable" and torch's own square root.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from m5ws.records.environment import Determinism
from m5ws.training.determinism import apply, portable

sys.path.insert(0, str(Path(__file__).parents[2] / "templates" / "gpt"))
from model import GPT

level, dtype = sys.argv[1], getattr(torch, sys.argv[2])
steps, threads, width = map(int, sys.argv[3:6])
apply.apply(Determinism(level="portable" if level == "portable" else "strict", threads=threads))
if level != "strict":
    portable.require()
torch.manual_seed(1)
model = GPT(vocabulary=2048, length=128, layers=4, heads=4, width=width, dropout=0.1).to(dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
walls, cpus = [], []
for _ in range(steps):
    began, before = time.perf_counter(), time.process_time()
    ids = torch.randint(0, 2048, (4, 129))
    model(ids[:, :-1], ids[:, 1:]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    walls.append(time.perf_counter() - began)
    cpus.append(time.process_time() - before)
half = steps // 2
print(json.dumps({"step_s": statistics.median(walls[half:]), "cpu_s": statistics.median(cpus[half:])}))
