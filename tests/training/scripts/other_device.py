"""Trains on a device, and writes each state that a step begins with: after-STEP.pt, with the device of each tensor.

Called as: other_device.py DEVICE STEPS [LIBRARY]; LIBRARY has the backend of the device `private`. Several ranks
train with DDP on the CPU.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import m5ws
from tests.support.devices import private_device


def build(device: str) -> torch.nn.Sequential:
    layers = (torch.nn.Linear(6, 10), torch.nn.BatchNorm1d(10), torch.nn.Dropout(0.3), torch.nn.Linear(10, 3))
    return torch.nn.Sequential(*layers).to(device)


def write(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    tensors = dict(model.state_dict())
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    torch.save({name: (value.device.type, value.cpu()) for name, value in tensors.items()}, f"after-{step}.pt")


def main(device: str, steps: int, library: str = "") -> None:
    if library:
        private_device.register(Path(library))
    m5ws.seed(7)
    trained = model = build(device)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        dist.init_process_group("gloo")
        trained = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    session = m5ws.session(trained, optimizer, total_steps=steps, checkpoint_every=2)
    for step in session.steps():
        if os.environ.get("RANK", "0") == "0":
            write(step.number - 1, model, optimizer)
        loss = trained(torch.randn(4, 6, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.record(loss=loss)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
