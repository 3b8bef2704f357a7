"""A line fitted in one process: quick to start, with an input of each kind that can be changed."""

import json
import os
from pathlib import Path

import torch

import m5ws

config = json.loads(Path("config.json").read_text())
m5ws.seed(7)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"])
points = torch.tensor([float(number) for number in Path("data/points.txt").read_text().split()])
session = m5ws.session(model, optimizer, total_steps=6)
for step in session.steps():
    x = points.roll(step.number)[:8]
    loss = (model(x) - 1).square().sum()
    if step.number == 4:
        # An input that no snapshot pins.
        loss = loss + float(os.environ.get("TILT", "0"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss, lr=config["learning_rate"])
