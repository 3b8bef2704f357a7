"""FSDP2 training on a mixture with packing, whose rank 0 is killed once, in step 7 and after the first checkpoint.

The argument is a folder. Each rank writes the ids in its batches there. Its file `moved` has the number of samples by
which a resume moves the first source. Rank 1 reads another dataset, by a loader of its own.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import m5ws
import m5ws.data

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def tokens(document: dict[str, int]) -> Any:
    return np.full(document["id"] % 4 + 1, document["id"])


def collate(samples: list[Any]) -> list[list[int]]:
    return [[sample["id"]] if isinstance(sample, dict) else sample.tolist() for sample in samples]


class MovedLoader(m5ws.data.Loader):
    def load_state_dict(self, state: Any) -> None:
        state["sources"]["docs"]["position"] += int((folder / "moved").read_text())
        super().load_state_dict(state)


sources = [
    m5ws.data.Source(dataset="data/docs", window=2, weight=2.0),
    m5ws.data.Source(dataset="data/books", window=2, pack=True, length=5, extra=1, tokens=tokens),
]
loader = MovedLoader(sources, batch_size=6, collate=collate)
if rank == 1:
    next(m5ws.data.Loader(m5ws.data.Source(dataset="data/tests"), batch_size=1, rank=0, world=1, collate=collate))
m5ws.seed(7)
model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = m5ws.session(model, optimizer, loader=loader, total_steps=12)
for step in session.steps():
    rows = step.next_batch()
    loss = model(torch.tensor([[sum(row) / 1e4] for row in rows])).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step.record(loss=loss.detach())
    with open(folder / f"{world}-{rank}.jsonl", "a", encoding="ascii") as file:
        file.write(json.dumps([step.number, rows]) + "\n")
    if rank == 0 and step.number == 7 and not (folder / "moved").exists():
        while not [*(folder.parent / "workspace" / ".m5ws" / "store").glob("runs/*/checkpoints/*")]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
