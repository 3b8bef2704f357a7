"""A tiny training with everything that makes resuming hard: dropout, a schedule, a shuffled loader that draws numbers.

Called as: tiny.py KIND STEPS [LOADER]; KIND is fsdp, ddp or single, LOADER is exact (default) or forgetful.
TINY_KILL=RANK:STEP:SIGNAL makes a rank send itself a signal inside that step.
"""

import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import m5ws


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 10)
        self.norm = torch.nn.BatchNorm1d(10)
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))  # type: ignore[no-any-return]


class Loader:
    """A shuffled epoch of 5 batches; its order comes from a seed drawn when the epoch begins."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.epoch = 0
        self.seed = 0
        self.given = 0
        self.resumed = False

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        # Drawn at once, also on a resume, as torch's own DataLoader draws its base seed.
        seed = int(torch.randint(2**31, ()))
        if not self.resumed:
            self.seed, self.given = seed, 0
        self.resumed = False
        return self.rest_of_epoch()

    def rest_of_epoch(self) -> Iterator[torch.Tensor]:
        order = np.random.default_rng([self.seed, self.epoch, self.rank]).permutation(5)
        while self.given < 5:
            position = int(order[self.given])
            self.given += 1
            yield torch.randn(4, 6, generator=torch.Generator().manual_seed(position * 100 + self.rank))


class ExactLoader(Loader):
    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seed, self.given, self.resumed = state["seed"], state["given"], True


def build(kind: str) -> torch.nn.Module:
    model = Model()
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model.first, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return torch.nn.parallel.DistributedDataParallel(model) if kind == "ddp" else model


def send_signal(rank: int, step: int) -> None:
    wanted = os.environ.get("TINY_KILL")
    if wanted and wanted.split(":")[:2] == [str(rank), str(step)]:
        os.kill(os.getpid(), int(wanted.split(":")[2]))


def main(kind: str, steps: int, loader_kind: str = "exact") -> None:
    if kind != "single":
        dist.init_process_group("gloo")
    rank = 0 if kind == "single" else dist.get_rank()
    seed = m5ws.seed(7)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loader = (ExactLoader if loader_kind == "exact" else Loader)(rank)
    torch.manual_seed(seed * 1000 + rank)
    session = m5ws.session(
        model,
        optimizer,
        scheduler=scheduler,
        loader=loader,
        total_steps=steps,
        checkpoint_every=2,
        state={"noise": (noise := torch.Generator().manual_seed(rank))},
    )
    for step in session.steps():
        x = step.next_batch() + 0.1 * torch.randn(4, 6, generator=noise)
        x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        loss = model(x).square().mean()
        loss.backward()
        send_signal(rank, step.number)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step.record(loss=loss, grad_norm=norm, lr=scheduler.get_last_lr()[0], tokens=4)
    print(f"rank {rank} is done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
