"""A training with the arguments and the config keys that the guides name. It fails while the file `--stop` exists."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import nn

import m5ws

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--stop", type=Path, default=Path("absent"))
parser.add_argument("--tokenizer", type=Path)
for name, steps in (("epochs", 3), ("max-steps", 6), ("save-steps", 1)):
    parser.add_argument(f"--{name}", type=int, default=steps)
options = parser.parse_args()
if options.tokenizer:
    for file in sorted(options.tokenizer.iterdir()):
        file.read_bytes()
settings = yaml.safe_load(Path("config.yaml").read_text())
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")

torch.manual_seed(m5ws.seed(settings["seed"]))
layers = [nn.Linear(settings["width"], settings["width"]) for _ in range(settings["layers"])]
model = nn.Sequential(nn.Dropout(settings["dropout"]), *layers)
rate = options.lr + settings["optimizer"]["lr"] + settings["learning_rate"]
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
total = min(settings["steps"], options.max_steps, 2 * options.epochs)
session = m5ws.session(model, optimizer, total_steps=total, checkpoint_every=options.save_steps)
for step in session.steps():
    loss = model(torch.randn(4, settings["width"])).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss)
    if step.number == 3 and options.stop.exists():
        raise SystemExit(1)
