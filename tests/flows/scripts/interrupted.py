"""A training without a session that saves every second step. Called as: train.py KIND STEPS."""

import json
import os
import sys
from pathlib import Path

import torch

kind, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
dropout = torch.nn.Dropout(0.1) if kind != "undrawn" else torch.nn.Identity()
model = torch.nn.Sequential(torch.nn.Linear(6, 8), dropout, torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
folder = Path("elsewhere" if kind == "elsewhere" else "out")
folder.mkdir(exist_ok=True)
file, done = folder / "checkpoint.pt", 0
if file.exists() and kind != "beginning":
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
    if kind not in ("generators", "undrawn"):
        torch.set_rng_state(saved["generator"])
if kind == "count":
    Path("out/count.json").write_text(json.dumps({"steps": steps - done}))
for step in range(done + 1, steps + 1):
    inputs = torch.randn(4, 6)
    if kind == "undrawn":  # The numbers above are not used.
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
    if kind == "noise at last" and step == steps:
        inputs += int.from_bytes(os.urandom(4), "little")
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == steps or step % 2 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state if kind == "undrawn" else {**state, "generator": torch.get_rng_state()}, file)
if kind == "elsewhere" and len(sys.argv) > 3:
    Path("out").mkdir(exist_ok=True)
    Path("out/end.txt").write_text("done")
