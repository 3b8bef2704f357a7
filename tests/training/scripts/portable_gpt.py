"""Trains the templates' GPT for three steps on a CPU and prints a digest of its state: fingerprints, joined and hashed.

Usage: portable_gpt.py LEVEL DTYPE. The caller sets the variables of the level, as for a rank.
"""

import hashlib
import sys
from pathlib import Path

import torch

from m5ws.records.environment import Determinism
from m5ws.training import determinism
from m5ws.training.backends.base import Piece
from m5ws.training.fingerprint import fingerprint

sys.path.insert(0, str(Path(__file__).parents[3] / "templates" / "gpt"))
from model import GPT

determinism.apply(Determinism(level=sys.argv[1]))  # type: ignore[arg-type]
if sys.argv[1] == "portable":
    determinism.require()
torch.manual_seed(1)
model = GPT(vocabulary=160, length=40, layers=2, heads=4, width=96, dropout=0.1).to(getattr(torch, sys.argv[2]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 160, (3, 41))
    model(ids[:, :-1], ids[:, 1:]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
pieces = [Piece(name, tensor) for name, tensor in model.state_dict().items()]
for number, state in optimizer.state_dict()["state"].items():
    pieces += [Piece(f"{number}.{name}", tensor) for name, tensor in state.items()]
found = fingerprint.fingerprints(pieces, None).values
print(torch.backends.cpu.get_cpu_capability(), hashlib.sha256(repr(found).encode()).hexdigest())
