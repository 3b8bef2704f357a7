"""A tiny training with a fault, which is named by a file outside of all snapshots.

The variable PLANTED has the path of that file. Without it the training has no fault. It has dropout, a shuffled loader,
a library of its own (`ruler`), and sums long enough for several threads.
"""

import json
import os
from pathlib import Path

import ruler
import torch
import torch.distributed as dist

import m5ws

STEPS = 40
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
told = Path(os.environ["PLANTED"])
fault = json.loads(told.read_text()) if told.exists() else {}
if fault.get("rank", rank) != rank:
    fault = {}


def planted(kind: str, number: int) -> bool:
    """Return True if a fault of this kind begins with step `number`."""
    return fault.get("kind") == kind and fault["step"] == number


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 48)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(48, 8)
        self.register_buffer("long", torch.linspace(0.1, 0.7, 100_003), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = sum((self.long * (x[row % len(x), row] + 0.3)).cos().sum() for row in range(4)) / 1e5
        return self.last(self.drop(torch.tanh(self.first(x * (1 + scale)))))


class Loader:
    """Batches of four samples, in an order drawn for each epoch of 60 steps."""

    def __init__(self, seed: int) -> None:
        self.samples = torch.randn(240, 16, generator=torch.Generator().manual_seed(seed))
        self.order = torch.randperm(240, generator=torch.Generator().manual_seed(seed + 1)).tolist()
        if fault.get("kind") == "order":
            a, b = fault["places"]
            for left, right in zip(range(a, a + fault["width"]), range(b, b + fault["width"]), strict=True):
                self.order[left], self.order[right] = self.order[right], self.order[left]
        self.given = 0

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> torch.Tensor:
        self.given += 1
        places = [(4 * self.given - 4 + place) % 240 for place in range(4)]
        batch = self.samples[[self.order[place] for place in places]]
        if planted("batch", self.given):
            batch.view(torch.int32).view(-1)[fault["element"] % 64] ^= 1 << fault["bit"]
        return batch

    def state_dict(self) -> dict:
        return {"given": self.given}

    def load_state_dict(self, state: dict) -> None:
        self.given = state["given"]


def flip(model: Model, element: int, bit: int) -> None:
    """Flip a bit of a weight of this rank."""
    for parameter in model.parameters():
        held = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if element < held.numel():
            held.detach().view(-1).view(torch.int32)[element] ^= 1 << bit
            return
        element -= held.numel()


def before(model: Model, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Do the fault's work before a step."""
    if planted("dropout", number):
        model.drop.eval() if fault["way"] else setattr(model.drop, "p", 0.0)
    if planted("beta", number):
        for group in optimizer.param_groups:
            group["betas"] = tuple(fault["betas"])
    if planted("threads", number):
        torch.set_num_threads(fault["threads"])
    if fault.get("kind") == "threads" and number == fault["until"] + 1:
        torch.set_num_threads(1)
    if planted("stop", number):
        raise SystemExit(3)


def after(model: Model, number: int) -> None:
    """Do the fault's work after a step."""
    if planted("weight", number):
        flip(model, fault["element"], fault["bit"])
    if planted("dropout", number):
        model.drop.train().p = 0.2


if world > 1:
    dist.init_process_group("gloo")
seed = m5ws.seed(7)
model = Model()
if world > 1:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
torch.manual_seed(seed * 1000 + rank)
session = m5ws.session(model, optimizer, loader=Loader(seed + rank), total_steps=STEPS)
for step in session.steps():
    if planted("draw", step.number) and session.first_step == step.number:
        torch.rand(1)
    before(model, optimizer, step.number)
    loss = (model(step.next_batch()).square().mean()) * ruler.length(step.number)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    after(model, step.number)
    step.record(loss=loss, grad_norm=norm, lr=5e-3, tokens=4)
if world > 1:
    dist.destroy_process_group()
