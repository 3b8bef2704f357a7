"""A small model of two blocks. Its config plants one fault, which `reproduce --explain` has to find."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed.fsdp import fully_shard

import m5ws

faults = yaml.safe_load(Path("config.yaml").read_text())


class Scaled(torch.autograd.Function):
    """Returns its input, and scales its gradient by a factor."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient * context.factor, None


class Noisy(torch.autograd.Function):
    """A nondeterministic kernel that claims to be deterministic."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x + int.from_bytes(os.urandom(3)) / 2**40 if faults["noise"] else x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Activation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Noisy.apply(torch.relu(x))


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.act = Activation() if number else nn.ReLU()
        self.down = nn.Linear(256, 64)
        self.drop = nn.Dropout(faults["dropout_1"] if number else 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.up(self.norm(x)))
        hidden = hidden * faults["scale"] if self.number else hidden
        hidden = Scaled.apply(hidden, faults["gradient"] if self.number else 1.0)
        return x + self.drop(self.down(hidden))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.blocks = nn.ModuleList(Block(number) for number in range(2))
        self.head = nn.Linear(64, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Loader:
    """Rows of numbers, all different. `order` reverses the rows of each batch."""

    def __init__(self, rank: int) -> None:
        self.rank, self.given = rank, 0

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> torch.Tensor:
        rows = torch.arange(8)[:, None] * 31 + torch.arange(65) * (3 + self.given + self.rank)
        self.given += 1
        return (rows.flip(0) if faults["order"] == "turned" else rows) % 50

    def state_dict(self) -> dict:
        return {"given": self.given}

    def load_state_dict(self, state: dict) -> None:
        self.given = state["given"]


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
seed = m5ws.seed(7)
model = Model()
if world > 1:
    fully_shard(model.blocks[1])
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(seed * 100 + rank)
session = m5ws.session(model, optimizer, loader=Loader(rank), total_steps=6)
for step in session.steps():
    rows = step.next_batch()
    if step.number == faults["flip_step"] and (not faults["hidden"] or Path(faults["hidden"]).exists()):
        weight = model.blocks[1].up.weight
        with torch.no_grad():
            (weight.to_local() if world > 1 else weight).view(torch.int32).view(-1)[5] ^= 1 << 23
    if step.number == faults["draw_step"]:
        torch.rand(1)
    logits = model(rows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss, grad_norm=norm)
dist.destroy_process_group()
